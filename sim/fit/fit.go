// Package fit measures how long the steps of a live engine take and finds the
// coefficients of sim/engine's step time, so that a simulation can stand for it.
//
// Only the times at which tokens arrive are measured. While a batch decodes, the time
// between two tokens of an answer is one step. While one answer decodes and a prompt
// comes in beside it, the answer's tokens count the steps and the time between them
// has the prompt in it, and nothing of HTTP or of a tokenizer.
package fit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Config is what is known of the engine and how long it may be kept busy.
type Config struct {
	KVTokens    int           // what its KV cache holds
	MaxModelLen int           // longest prompt and output together
	MaxSeqs     int           // sequences at once; 0 = found by trying, up to the largest batch
	Prompts     []int         // prompt lengths, in tokens
	Batches     []int         // sequences at once, in ascending order
	Steps       int           // decode steps that a point takes the mean of: 6 to 1000
	Within      time.Duration // no point begins later: 1s to 1h
	Seed        uint64        // of prompts and of the order of points. One engine must not see one twice: it may have cached the prompts
	Force       bool          // go on beside other work; figures are worse then
}

// DefaultConfig leaves KVTokens, MaxModelLen and Seed to the caller.
func DefaultConfig() Config {
	return Config{
		Prompts: []int{64, 256, 1024, 2048, 4096, 8192},
		Batches: []int{1, 2, 4, 8, 16, 32, 64},
		Steps:   40, Within: 5 * time.Minute,
	}
}

// Validate names the first field that cannot be used, its value and the remedy.
func (c *Config) Validate() error {
	switch {
	case c.KVTokens < 256:
		return fmt.Errorf("fit: KVTokens is %d; set what the engine's KV cache holds, at least 256", c.KVTokens)
	case c.MaxModelLen < 4*c.Steps+short:
		return fmt.Errorf("fit: MaxModelLen is %d; set the longest prompt and output together, at least %d for %d steps", c.MaxModelLen, 4*c.Steps+short, c.Steps)
	case c.MaxSeqs < 0:
		return fmt.Errorf("fit: MaxSeqs is %d; set 1 or more, or 0 to find it", c.MaxSeqs)
	case len(c.Prompts) == 0 || len(c.Batches) == 0:
		return errors.New("fit: Prompts and Batches must be set")
	case c.Steps < 6 || c.Steps > 1000:
		return fmt.Errorf("fit: Steps is %d; set 6 to 1000", c.Steps)
	case c.Within < time.Second || c.Within > time.Hour:
		return fmt.Errorf("fit: Within is %v; set 1s to 1h", c.Within)
	}
	for _, n := range c.Prompts {
		if n < 1 || n > 1<<20 {
			return fmt.Errorf("fit: Prompts has %d; set 1 to %d tokens", n, 1<<20)
		}
	}
	for _, n := range c.Batches {
		if n < 1 || n > 1024 {
			return fmt.Errorf("fit: Batches has %d; set 1 to 1024 sequences", n)
		}
	}
	return nil
}

// Engine is the one that is measured.
type Engine struct {
	// Generate runs a prompt of token ids for exactly output tokens, at temperature 0
	// and past any end of sequence. token hears how many have come, as they come, on
	// one goroutine. It returns when the answer is complete, and with an error soon
	// after ctx has ended, by when the engine works on it no more.
	Generate func(ctx context.Context, prompt []int, output int, token func(total int)) error

	// Gauges are the requests that the engine says run and wait, no older than the call.
	Gauges func(ctx context.Context) (running, waiting int, err error)
}

// ErrBusy says that the engine works for somebody else.
var ErrBusy = errors.New("the engine works for others too")

// Result is what a sweep found.
type Result struct {
	Coefficients Coefficients
	Rows         []Row     // as measured, in the order of measuring
	Off          []float64 // of each row, |predicted - measured| / measured by a fit without it
	FirstToken   float64   // seconds by which a lone request's first token comes later than its steps, median; 0 = not measured
	Seats        int       // sequences that ran at once, at most
	SeatsFull    bool      // more were there and did not run: Seats is all the engine has
	Chunk        int       // tokens of one step, at most; 0 = no prompt was cut into several
	LongestWhole int       // longest prompt that was computed in one step
	Skipped      []string  // points that were not measured, and why
	Took         time.Duration
}

// Run sweeps the engine and solves. progress hears after each point how many are
// done and about how long the others take. When Run returns the engine has nothing
// of it left, or its error says so. Errors: ErrBusy, ctx's own, the engine's, and too
// few points measured.
func Run(ctx context.Context, cfg Config, engine Engine, progress func(done, all int, left time.Duration)) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, err
	}
	s := &sweep{cfg: cfg, engine: engine, random: rand.New(rand.NewPCG(cfg.Seed, 0)), begun: time.Now()}
	if err := s.alone(ctx, 0); err != nil {
		return Result{}, err
	}
	err := s.run(ctx, progress)
	if err == nil && len(s.rows) < 2*terms {
		err = fmt.Errorf("only %d points could be measured, want at least %d: %v", len(s.rows), 2*terms, s.skipped)
	}
	if err != nil {
		return Result{}, err
	}
	r := Result{
		Coefficients: Solve(s.rows), Rows: s.rows, Off: HeldOut(s.rows), Seats: s.seats, SeatsFull: s.seatsFull,
		Skipped: s.skipped, Took: time.Since(s.begun),
	}
	r.FirstToken = s.firstToken(&r.Coefficients)
	r.Chunk, r.LongestWhole = s.chunk()
	return r, nil
}
