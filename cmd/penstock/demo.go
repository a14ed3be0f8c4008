package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"penstock/load"
	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/vllm/simengine"
)

// demoConfig of the demo: what both engines get.
type demoConfig struct {
	span     time.Duration
	overload float64 // times the engine's capacity
	seed     uint64
}

func newDemo() *cobra.Command {
	var cfg demoConfig
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "The same overload on two simulated engines, one bare and one behind penstock",
		Long: `demo starts two equal simulated engines, one bare and one behind penstock, sends both the
same requests at twice what an engine can finish, from clients that close after 5 s without a
first token, try again up to 3 times (when told, if told), give up after 15 s, and prints what
came of them.

A request is good when, counted from its last attempt, its first token came within 2 s, its
tokens within 100 ms each in the mean, and no gap was longer than 1 s.`,
		Example: "  penstock demo\n  penstock demo --overload 3 --seed 7",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cfg.span < time.Second || cfg.span > 10*time.Minute:
				return usage("--span %v: want 1s to 10m", cfg.span)
			case !(cfg.overload > 0 && cfg.overload <= 5):
				return usage("--overload %v: want more than 0 and at most 5", cfg.overload)
			}
			return runDemo(cmd.Context(), cfg, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&cfg.span, "span", 30*time.Second, "length of the overload")
	cmd.Flags().Float64Var(&cfg.overload, "overload", 2, "load as a multiple of what one engine can finish")
	cmd.Flags().Uint64Var(&cfg.seed, "seed", 1, "seed of the workload; the same seed sends the same requests")
	return cmd
}

// demoEngine is a small engine: 16k KV tokens, so that memory binds at a rate that
// two engines and their clients can sustain on two cores.
func demoEngine() simengine.Config {
	cfg := defaultSim(1)
	cfg.Engine.Blocks, cfg.Engine.MaxSeqs, cfg.Engine.MaxBatchedTokens = 1025, 64, 1024
	cfg.Engine.Base, cfg.Engine.PerPrefillToken, cfg.Engine.PerSeq = 12*time.Millisecond, 50*time.Microsecond, 50*time.Microsecond
	return cfg
}

// demoShapes are lengths as in conversations: log-normal around 900 prompt and 60
// output tokens, the prompts with a long tail.
func demoShapes(seed uint64) []load.Shape {
	random := rand.New(rand.NewPCG(seed, 1))
	shapes := make([]load.Shape, 2000)
	for i := range shapes {
		shapes[i] = load.Shape{
			Prompt: int(math.Min(4000, 900*math.Exp(0.7*random.NormFloat64()))),
			Output: int(math.Min(400, 60*math.Exp(0.6*random.NormFloat64()))) + 1,
		}
	}
	return shapes
}

// capacity is how many such requests per second the engine finishes when its
// queue never runs dry, by stepping it in virtual time.
func capacity(cfg engine.Config, shapes []load.Shape) (float64, error) {
	e, err := engine.New(cfg)
	if err != nil {
		return 0, err
	}
	var took time.Duration
	sent, finished := 0, 0
	for finished < len(shapes) {
		for sent < len(shapes) && e.Stats().Waiting < 8 && e.InFlight() < cfg.MaxSeqs {
			if err := e.Submit(engine.Request{ID: uint64(sent + 1), Prompt: max(1, shapes[sent].Prompt), Output: shapes[sent].Output}); err != nil {
				return 0, err
			}
			sent++
		}
		step := e.Step()
		took += step.Duration
		for _, event := range step.Events {
			if event.Kind == engine.Finished {
				finished++
			}
		}
	}
	return float64(finished) / took.Seconds(), nil
}

// demoRow is one engine's outcome.
type demoRow struct {
	name    string
	summary load.Summary
	stats   engine.Stats
}

func runDemo(ctx context.Context, cfg demoConfig, stdout, stderr io.Writer) error {
	shapes := demoShapes(cfg.seed)
	most, err := capacity(demoEngine().Engine, shapes)
	if err != nil {
		return err
	}
	rate := cfg.overload * most
	arrivals := load.Poisson(shapes, rate, int(rate*cfg.span.Seconds()), cfg.seed)
	_, _ = fmt.Fprintf(stderr, "one engine finishes %.1f requests/s; sending %.1f/s to each of two for %v\n", most, rate, cfg.span)

	sims := make([]*simulated, 2)
	for i := range sims {
		if sims[i], err = newSimulated("127.0.0.1:0", demoEngine()); err != nil {
			return err
		}
	}
	opts := &options{
		engines: []string{sims[1].URL()}, listen: "127.0.0.1:0", grpc: "127.0.0.1:0", admin: "127.0.0.1:0",
		sloTTFT: load.DefaultSLO.TTFT, refuseLaw: "rate", law: scheduler.DefaultConfig().Law, grace: 5 * time.Second,
	}
	s, err := newStack(opts, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	if err != nil {
		return err
	}
	parts, stop := context.WithCancel(ctx)
	defer stop()
	ready := make(chan struct{})
	s.onReady = func(string) { close(ready) }
	var group errgroup.Group
	for _, sim := range sims {
		group.Go(func() error { defer stop(); return sim.Run(parts) })
	}
	group.Go(func() error { defer stop(); return s.Run(parts) })
	select {
	case <-ready:
	case <-parts.Done():
		return group.Wait()
	}
	rows := []*demoRow{{name: "bare engine"}, {name: "behind penstock"}}
	var loads errgroup.Group
	for i, url := range []string{sims[0].URL(), "http://" + s.address()} {
		loads.Go(func() (err error) {
			rows[i].summary, err = demoLoad(parts, url, rows[i].name, arrivals, cfg.seed, stderr)
			return err
		})
	}
	if err := loads.Wait(); err != nil {
		stop()
		_ = group.Wait()
		return err
	}
	for i, sim := range sims {
		rows[i].stats = sim.server.Stats()
	}
	stop()
	if err := group.Wait(); err != nil {
		return err
	}
	return printDemo(stdout, rows)
}

func demoLoad(ctx context.Context, url, name string, arrivals []load.Arrival, seed uint64, progress io.Writer) (load.Summary, error) {
	start, last := time.Now(), time.Now()
	outcomes, err := load.Run(ctx, load.Config{
		URL: url, Model: demoEngine().Model, Arrivals: arrivals, BytesPerToken: float64(demoEngine().BytesPerToken),
		Patience: 5 * time.Second, GiveUp: 15 * time.Second, Retries: 3, ObeyRetry: true, Backoff: 500 * time.Millisecond, SLO: load.DefaultSLO, Seed: seed,
		Progress: func(done, total int) {
			if time.Since(last) > 5*time.Second {
				last = time.Now()
				_, _ = fmt.Fprintf(progress, "%3.0f s  %-16s %d of %d requests ended\n", time.Since(start).Seconds(), name, done, total)
			}
		},
	})
	return load.Summarize(outcomes), err
}

func printDemo(w io.Writer, rows []*demoRow) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "\t%s\t%s\n", rows[0].name, rows[1].name)
	line := func(name string, value func(r *demoRow) string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", name, value(rows[0]), value(rows[1]))
	}
	line("goodput", func(r *demoRow) string {
		return fmt.Sprintf("%.1f req/s (%d of %d)", r.summary.Goodput, r.summary.Good, r.summary.Requests)
	})
	line("goodput in tokens", func(r *demoRow) string { return fmt.Sprintf("%.0f tok/s", r.summary.TokenGoodput) })
	line("TTFT p50 / p99", func(r *demoRow) string {
		return fmt.Sprintf("%.2f s / %.2f s", r.summary.TTFTp50.Seconds(), r.summary.TTFTp99.Seconds())
	})
	line("worst gap", func(r *demoRow) string { return fmt.Sprintf("%.2f s", r.summary.GapMax.Seconds()) })
	line("preemptions", func(r *demoRow) string { return fmt.Sprint(r.stats.Preemptions) })
	line("wasted tokens", func(r *demoRow) string {
		wasted := r.stats.TokensAborted + r.stats.TokensRecomputed
		return fmt.Sprintf("%d (%.0f %%)", wasted, 100*float64(wasted)/math.Max(1, float64(r.stats.TokensComputed)))
	})
	line("good by prompt quartile", func(r *demoRow) string { return fmt.Sprintf("%.2f", r.summary.Quartiles) })
	line("attempts without a token", func(r *demoRow) string { return reasons(r.summary.Refused) })
	return table.Flush()
}

func reasons(by map[string]int) string {
	if len(by) == 0 {
		return "none"
	}
	var parts []string
	for why, n := range by {
		parts = append(parts, fmt.Sprintf("%s %d", why, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
