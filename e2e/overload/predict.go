package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock/load"
	"penstock/sim"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// fromFirst is a seed under which sim begins a trace with its first request.
const fromFirst = 445729

// predict replays arrivals on a profile, as penstock sim replay does, and prints what
// a run against the engine prints.
func (o *options) predict(arrivals []load.Arrival) error {
	if o.tail != sim.Tail {
		return fmt.Errorf("--tail %v: with --profile it is %v, and so it should be of the run to compare with", o.tail, sim.Tail)
	}
	dir, err := os.MkdirTemp("", "overload")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	trace := filepath.Join(dir, "trace.csv")
	if err := os.WriteFile(trace, asTrace(arrivals), 0o644); err != nil {
		return err
	}
	cfg := sim.DefaultConfig()
	cfg.Seed, cfg.Shifts, cfg.Warm, cfg.Span = fromFirst, 1, o.warm, o.span
	cfg.Clients.Patience, cfg.Clients.Retries = o.patience, o.retries
	if cfg.Workload, err = traces.Load(trace); err != nil {
		return err
	}
	if cfg.Profile, err = world.LoadProfile(o.profile); err != nil {
		return err
	}
	if cfg.Policies, err = sim.FindPolicies([]string{o.policy}); err != nil {
		return err
	}
	// The simulator offers a multiple of what the engine can do: the first run tells that.
	cfg.Loads = []float64{1}
	row, err := one(cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: the engine can do %.2f of these requests per second, so %g are a load of %.2f\n", o.profile, row.Offered, o.rate, o.rate/row.Offered)
	cfg.Loads[0] = o.rate / row.Offered
	if row, err = one(cfg); err != nil {
		return err
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return o.write(rowOf(load.Summary{
		Goodput: row.Goodput, TokenGoodput: row.TokenGoodput, TTFTp50: seconds(row.TTFTp50), TTFTp99: seconds(row.TTFTp99),
		GapP99: seconds(row.GapP99), Quartiles: row.Quartiles,
	}), "")
}

// one is the row of a policy's first setting.
func one(cfg sim.Config) (sim.Row, error) {
	rows, err := sim.Run(context.Background(), cfg, func(int, int) {})
	if err != nil {
		return sim.Row{}, err
	}
	if len(rows) == 0 {
		return sim.Row{}, errors.New("no row")
	}
	return rows[0], nil
}

// asTrace writes arrivals as the simulator reads them.
func asTrace(arrivals []load.Arrival) []byte {
	text := []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	for _, a := range arrivals {
		text = fmt.Appendf(text, "%.9f,%d,%d\n", a.At.Seconds(), a.Prompt, a.Output)
	}
	return text
}
