// Package isolation measures how much lanes at their limit disturb the lanes beside
// them, on any queue. A limited lane may start one message per Limit; a delivery that
// comes too early is given back with Suspend or, to compare, slept through in its
// handler. All lanes get messages at the same rate whatever happens to them (open
// loop), and what counts is how long those of the free lanes take to their handler.
package isolation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// How is what happens to a delivery that is too early for its lane's limit.
type How string

// All of How.
const (
	None    How = "none" // no lane is limited
	Suspend How = "suspend"
	Sleep   How = "sleep" // in the handler
)

// Case is one arrangement of lanes and threads.
type Case struct {
	Limited int `json:"limited"` // lanes, of Config.Lanes
	How     How `json:"how"`
	Threads int `json:"threads"` // handlers that run at once, at most
}

func (c Case) String() string { return fmt.Sprintf("%s %d, %d threads", c.How, c.Limited, c.Threads) }

// Config is the experiment. All cases but their limits are alike.
type Config struct {
	Lanes  int
	Cases  []Case // the first is the one without a limit that the others are compared with
	Rate   float64
	Limit  time.Duration // a limited lane starts one message in it
	Warm   time.Duration // of each case, not counted
	Span   time.Duration // of each case, counted
	Rounds int           // each runs all cases, in an order of its own
	Seed   uint64        // of the order, of who is limited, and of the moments of publishing
}

// DefaultConfig is 50 lanes with 4 messages per second each, and 300 ms; it takes a
// bit less than six minutes on a broker.
func DefaultConfig() Config {
	return Config{
		Lanes: 50, Cases: Plan(50, 50), Rate: 4, Limit: 300 * time.Millisecond,
		Warm: 2 * time.Second, Span: 10 * time.Second, Rounds: 3, Seed: 1,
	}
}

// Plan is none limited, a tenth and four fifths of the lanes suspended on all
// threads, and the same slept through.
func Plan(lanes, threads int) []Case {
	few, most := max(1, lanes/10), max(1, lanes*4/5)
	return []Case{
		{0, None, threads},
		{few, Suspend, threads},
		{most, Suspend, threads},
		{most, Sleep, threads},
		{most, Sleep, max(1, most*4/5)},
		{few, Sleep, max(1, few*4/5)},
	}
}

// Validate names the first field that cannot work, its value and what to put there.
func (c *Config) Validate() error {
	switch {
	case c.Lanes < 2 || c.Lanes > 1000:
		return fmt.Errorf("isolation: Lanes %d: give 2 to 1000", c.Lanes)
	case len(c.Cases) == 0 || c.Cases[0].How != None:
		return fmt.Errorf("isolation: Cases %v: begin with one of How none", c.Cases)
	case c.Limit < queue.MinSuspend || c.Limit > queue.MaxSuspend:
		return fmt.Errorf("isolation: Limit %v: give %v to %v, what a Suspend can be", c.Limit, queue.MinSuspend, queue.MaxSuspend)
	case !(c.Rate*c.Limit.Seconds() > 1) || c.Rate > 1000:
		return fmt.Errorf("isolation: Rate %v: give at most 1000 messages per second and lane, and more than the %.3g that a Limit of %v lets through", c.Rate, 1/c.Limit.Seconds(), c.Limit)
	case c.Warm < 0 || c.Warm > time.Minute:
		return fmt.Errorf("isolation: Warm %v: give 0 to 1m", c.Warm)
	case c.Span < time.Second || c.Span > 10*time.Minute:
		return fmt.Errorf("isolation: Span %v: give 1s to 10m", c.Span)
	case c.Rounds < 1 || c.Rounds > 100:
		return fmt.Errorf("isolation: Rounds %d: give 1 to 100", c.Rounds)
	}
	for _, k := range c.Cases {
		switch {
		case (k.How == None) != (k.Limited == 0) || k.Limited < 0 || k.Limited >= c.Lanes:
			return fmt.Errorf("isolation: Cases: %v of %d lanes: leave a lane free, and limit none only with How none", k, c.Lanes)
		case k.Threads < 1 || k.Threads > 100_000:
			return fmt.Errorf("isolation: Cases: %v: give 1 to 100000 threads", k)
		}
	}
	return nil
}

// Consumer is a queue's, with a bound on handlers at once.
type Consumer interface {
	Accept(func(lane.Key) bool)
	Run(context.Context, queue.Handler) error
}

// Broker is the queue under test. Its lanes are nobody else's.
type Broker struct {
	Publish func(context.Context, *queue.Message) error           // ends by itself when the broker is away
	Open    func(threads int, lanes []lane.Key) (Consumer, error) // one at a time
}

// Figures are one run of a case, or the medians of several.
type Figures struct {
	P50        time.Duration `json:"p50_ns"` // free lanes: due to be published until in the handler
	P99        time.Duration `json:"p99_ns"`
	Max        time.Duration `json:"max_ns"`
	FreeRate   float64       `json:"free_per_lane"`    // messages started per second and free lane
	LimitRate  float64       `json:"limited_per_lane"` // the same of a limited lane
	Deliveries float64       `json:"deliveries"`       // per second, over all lanes
	Kept       float64       `json:"kept"`             // FreeRate over that of the round's first case
	Slower     float64       `json:"slower"`           // P99 over that of the round's first case
}

// Row is a case with its medians and the rounds they are of.
type Row struct {
	Case
	Figures
	Rounds []Figures `json:"rounds"`
}

// What the medians have to show. Without limits the lanes get at least Keep of what
// is published: otherwise the broker is the limit, and nothing can be compared. Free
// lanes beside suspended ones keep at least Keep of that throughput and at most Slow
// times the p99. Where limited lanes sleep on fewer threads, it is at least Stuck times.
const (
	Keep  = 0.95
	Slow  = 1.5
	Stuck = 5.0
)

// Target is what the row has to show and whether it does; "" = nothing, and it does.
// rate is Config.Rate.
func (r *Row) Target(rate float64) (want string, holds bool) {
	switch {
	case r.How == None:
		return fmt.Sprintf("per lane >= %.3g/s", Keep*rate), r.FreeRate >= Keep*rate
	case r.How == Suspend:
		return fmt.Sprintf("kept >= %g %%, slower <= %gx", 100*Keep, Slow), r.Kept >= Keep && r.Slower <= Slow
	case r.How == Sleep && r.Threads < r.Limited:
		return fmt.Sprintf("slower >= %gx", Stuck), r.Slower >= Stuck
	}
	return "", true
}

// Experiment runs the cases.
type Experiment struct {
	cfg    Config
	broker Broker
	done   func(round int, c Case, f Figures)
}

// New returns an experiment; done is called after each case with what it gave, rounds
// from 1, before it is compared with others.
func New(cfg Config, broker Broker, done func(round int, c Case, f Figures)) (*Experiment, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Experiment{cfg, broker, done}, nil
}

// Within is how long Run takes when nothing goes wrong, start and end of a consumer
// not counted.
func (c *Config) Within() time.Duration {
	return time.Duration(c.Rounds*len(c.Cases)) * (c.Warm + c.Span)
}

// Run runs all rounds and returns a row per case, in the order of Config.Cases. It
// leaves no message behind unless it says so in its error. Each case ends at most a
// minute and the consumer's own stop after Warm and Span.
func (e *Experiment) Run(ctx context.Context) ([]Row, error) {
	rows := make([]Row, len(e.cfg.Cases))
	for i, c := range e.cfg.Cases {
		rows[i].Case = c
	}
	random := rand.New(rand.NewPCG(e.cfg.Seed, 0))
	series := uint32(time.Now().UnixNano()) // a message of an earlier run is none of ours
	for round := range e.cfg.Rounds {
		for _, i := range random.Perm(len(rows)) {
			t := newTrial(&e.cfg, rows[i].Case, series, random)
			series++
			f, err := t.run(ctx, e.broker)
			if err != nil {
				return nil, fmt.Errorf("round %d, %v: %w", round+1, rows[i].Case, err)
			}
			rows[i].Rounds = append(rows[i].Rounds, f)
			e.done(round+1, rows[i].Case, f)
		}
		base := rows[0].Rounds[round]
		for i := range rows {
			f := &rows[i].Rounds[round]
			f.Kept = f.FreeRate / max(base.FreeRate, 1e-9)
			f.Slower = float64(f.P99) / float64(max(base.P99, time.Microsecond))
		}
	}
	for i := range rows {
		rows[i].Figures = medians(rows[i].Rounds)
	}
	return rows, nil
}

// medians is the median of each figure: what a ratio has is that of the rounds'
// ratios, since a round's cases ran under the same load.
func medians(rounds []Figures) Figures {
	return Figures{
		P50:        median(rounds, func(f Figures) time.Duration { return f.P50 }),
		P99:        median(rounds, func(f Figures) time.Duration { return f.P99 }),
		Max:        median(rounds, func(f Figures) time.Duration { return f.Max }),
		FreeRate:   median(rounds, func(f Figures) float64 { return f.FreeRate }),
		LimitRate:  median(rounds, func(f Figures) float64 { return f.LimitRate }),
		Deliveries: median(rounds, func(f Figures) float64 { return f.Deliveries }),
		Kept:       median(rounds, func(f Figures) float64 { return f.Kept }),
		Slower:     median(rounds, func(f Figures) float64 { return f.Slower }),
	}
}

// median is the middle one, of an even number the mean of both.
func median[T time.Duration | float64](rounds []Figures, of func(Figures) T) T {
	var all []T
	for _, f := range rounds {
		all = append(all, of(f))
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
