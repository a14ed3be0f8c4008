package main

import (
	"context"
	"errors"
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

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/show"
	"penstock/cmd/penstock/stack"
	"penstock/gateway"
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
	var tenants bool
	var output string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "The same overload on two simulated engines, one bare and one behind penstock",
		Long: `demo starts two equal simulated engines, one bare and one behind penstock, sends both the
same requests at twice what an engine can finish, from clients that close after 5 s without a
first token, try again up to 3 times (when told, if told), give up after 15 s, and prints what
came of them.

With --tenants the requests are those of an abuser, who sends half of all and asks again at once
when refused, of a VIP with a tenth, and of two normal tenants with a fifth each, who share an
engine. The policy: the abuser's quota is a twentieth of what the engine can do; the VIP's tier
goes first and wants its first token within 400 ms; the others together take half of the engine's
memory at most. A third engine, also behind penstock, gets the same requests of the VIP and so few
of the others that it is 0.8 times what it can finish in all: what the VIP has without overload.

A request is good when, counted from its last attempt, its first token came within 2 s, its
tokens within 100 ms each in the mean, and no gap was longer than 1 s.`,
		Example: "  penstock demo\n  penstock demo --overload 3 --seed 7\n  penstock demo --tenants\n  penstock demo --tenants -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := show.CheckOutput(output); err != nil {
				return err
			}
			if tenants && !cmd.Flags().Changed("span") {
				cfg.span = tenantsSpan
			}
			switch {
			case cfg.span < time.Second || cfg.span > 10*time.Minute:
				return exit.Usagef("--span %v: want 1s to 10m", cfg.span)
			case !(cfg.overload > 0 && cfg.overload <= 5):
				return exit.Usagef("--overload %v: want more than 0 and at most 5", cfg.overload)
			case output != "text" && !tenants:
				return exit.Usagef("-o %s: only --tenants has it", output)
			case !tenants:
				return runDemo(cmd.Context(), cfg, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			report, err := runTenants(cmd.Context(), cfg, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return report.print(cmd.OutOrStdout(), output)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.span, "span", 30*time.Second, "length of the overload; 1m with --tenants")
	f.Float64Var(&cfg.overload, "overload", 2, "load as a multiple of what one engine can finish")
	f.Uint64Var(&cfg.seed, "seed", 1, "seed of the workload; the same seed sends the same requests")
	f.BoolVar(&tenants, "tenants", false, "four tenants share an engine: an abuser, a VIP, two normal ones")
	f.StringVarP(&output, "output", "o", "text", "text or json; json with --tenants")
	return cmd
}

// demoEngine is a small engine: 16k KV tokens, so that memory binds at a rate that
// two engines and their clients can sustain on two cores.
func demoEngine() simengine.Config {
	cfg := simengine.DefaultConfig()
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

func runDemo(ctx context.Context, cfg demoConfig, stdout, stderr io.Writer) (err error) {
	shapes := demoShapes(cfg.seed)
	most, err := capacity(demoEngine().Engine, shapes)
	if err != nil {
		return err
	}
	rate := cfg.overload * most
	arrivals := load.Poisson(shapes, rate, int(rate*cfg.span.Seconds()), cfg.seed)
	_, _ = fmt.Fprintf(stderr, "one engine finishes %.1f requests/s; sending %.1f/s to each of two for %v\n", most, rate, cfg.span)

	r := newRig(ctx, stderr)
	defer func() { err = errors.Join(err, r.end()) }()
	bare, err := r.engine(demoEngine())
	if err != nil {
		return err
	}
	fronted, url, err := r.behind(demoEngine(), "")
	if err != nil {
		return err
	}
	rows := []*demoRow{{name: "bare engine"}, {name: "behind penstock"}}
	var loads errgroup.Group
	for i, url := range []string{bare.URL(), url} {
		loads.Go(func() (err error) {
			rows[i].summary, err = demoLoad(r.ctx, url, rows[i].name, arrivals, cfg.seed, stderr)
			return err
		})
	}
	if err := loads.Wait(); err != nil {
		return err
	}
	rows[0].stats, rows[1].stats = bare.Stats(), fronted.Stats()
	return printDemo(stdout, rows)
}

// rig is what a demo runs: engines, and penstock in front of some of them.
type rig struct {
	ctx   context.Context // ends when a part of it does
	stop  context.CancelFunc
	group errgroup.Group
	log   *slog.Logger
}

func newRig(ctx context.Context, stderr io.Writer) *rig {
	r := &rig{log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
	r.ctx, r.stop = context.WithCancel(ctx)
	return r
}

// end stops everything and returns when all has ended.
func (r *rig) end() error {
	r.stop()
	return r.group.Wait()
}

func (r *rig) run(p func(context.Context) error) {
	r.group.Go(func() error { defer r.stop(); return p(r.ctx) })
}

// engine starts a simulated engine.
func (r *rig) engine(cfg simengine.Config) (*stack.Simulated, error) {
	sim, err := stack.NewSimulated("127.0.0.1:0", cfg)
	if err == nil {
		r.run(sim.Run)
	}
	return sim, err
}

// behind starts a simulated engine and penstock in front of it, with a policy's file
// or, "", none, and returns once it is ready.
func (r *rig) behind(cfg simengine.Config, policy string) (sim *stack.Simulated, url string, err error) {
	if sim, err = r.engine(cfg); err != nil {
		return nil, "", err
	}
	s, err := stack.NewStandalone(&flags.Options{
		Engines: []string{sim.URL()}, Listen: "127.0.0.1:0", GRPC: "127.0.0.1:0", Admin: "127.0.0.1:0", PolicyFile: policy,
		SLOTTFT: load.DefaultSLO.TTFT, RefuseLaw: gateway.LawRate, Law: scheduler.DefaultConfig().Law, Grace: 5 * time.Second,
	}, r.log)
	if err != nil {
		return nil, "", err
	}
	ready := make(chan struct{})
	s.OnReady = func(string) { close(ready) }
	r.run(s.Run)
	select {
	case <-ready:
		return sim, "http://" + s.Address(), nil
	case <-r.ctx.Done():
		return nil, "", r.ctx.Err()
	}
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
