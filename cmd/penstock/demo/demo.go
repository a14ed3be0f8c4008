// Package demo sends the same overload to simulated engines with and without penstock in
// front of them and says what came of it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"penstock/load"
	"penstock/sim/engine"
	"penstock/vllm/simengine"
)

// Config of the demo: what each overloaded engine gets.
type Config struct {
	Span     time.Duration // length of the overload, that of the tenants' without what is not counted
	Overload float64       // times the engine's capacity
	Seed     uint64        // of lengths and arrivals
}

// smallEngine is a small engine: 16k KV tokens, so that memory binds at a rate that
// two engines and their clients can sustain on two cores.
func smallEngine() simengine.Config {
	cfg := simengine.DefaultConfig()
	cfg.Engine.Blocks, cfg.Engine.MaxSeqs, cfg.Engine.MaxBatchedTokens = 1025, 64, 1024
	cfg.Engine.Base, cfg.Engine.PerPrefillToken, cfg.Engine.PerSeq = 12*time.Millisecond, 50*time.Microsecond, 50*time.Microsecond
	return cfg
}

// conversations are lengths as in conversations: log-normal around 900 prompt and 60
// output tokens, the prompts with a long tail.
func conversations(seed uint64) []load.Shape {
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

// Capacity is how many such requests per second the engine finishes when its
// queue never runs dry, by stepping it in virtual time.
func Capacity(cfg engine.Config, shapes []load.Shape) (float64, error) {
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

// result is one engine's outcome.
type result struct {
	name    string
	summary load.Summary
	stats   engine.Stats
}

// Run sends the same requests to two engines, one of them bare, and writes to stdout what
// came of them; progress goes to stderr.
func Run(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	shapes := conversations(cfg.Seed)
	most, err := Capacity(smallEngine().Engine, shapes)
	if err != nil {
		return err
	}
	rate := cfg.Overload * most
	arrivals := load.Poisson(shapes, rate, int(rate*cfg.Span.Seconds()), cfg.Seed)
	_, _ = fmt.Fprintf(stderr, "one engine finishes %.1f requests/s; sending %.1f/s to each of two for %v\n", most, rate, cfg.Span)

	r := newRig(ctx, stderr)
	defer func() { err = errors.Join(err, r.end()) }()
	bare, err := r.engine(smallEngine())
	if err != nil {
		return err
	}
	fronted, url, err := r.behind(smallEngine(), "")
	if err != nil {
		return err
	}
	rows := []*result{{name: "bare engine"}, {name: "behind penstock"}}
	var loads errgroup.Group
	for i, url := range []string{bare.URL(), url} {
		loads.Go(func() (err error) {
			rows[i].summary, err = send(r.ctx, url, rows[i].name, arrivals, cfg.Seed, stderr)
			return err
		})
	}
	if err := loads.Wait(); err != nil {
		return err
	}
	rows[0].stats, rows[1].stats = bare.Stats(), fronted.Stats()
	return write(stdout, rows)
}

func send(ctx context.Context, url, name string, arrivals []load.Arrival, seed uint64, progress io.Writer) (load.Summary, error) {
	start, last := time.Now(), time.Now()
	outcomes, err := load.Run(ctx, load.Config{
		URL: url, Model: smallEngine().Model, Arrivals: arrivals, BytesPerToken: float64(smallEngine().BytesPerToken),
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

func write(w io.Writer, rows []*result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "\t%s\t%s\n", rows[0].name, rows[1].name)
	line := func(name string, value func(r *result) string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", name, value(rows[0]), value(rows[1]))
	}
	line("goodput", func(r *result) string {
		return fmt.Sprintf("%.1f req/s (%d of %d)", r.summary.Goodput, r.summary.Good, r.summary.Requests)
	})
	line("goodput in tokens", func(r *result) string { return fmt.Sprintf("%.0f tok/s", r.summary.TokenGoodput) })
	line("TTFT p50 / p99", func(r *result) string {
		return fmt.Sprintf("%.2f s / %.2f s", r.summary.TTFTp50.Seconds(), r.summary.TTFTp99.Seconds())
	})
	line("worst gap", func(r *result) string { return fmt.Sprintf("%.2f s", r.summary.GapMax.Seconds()) })
	line("preemptions", func(r *result) string { return fmt.Sprint(r.stats.Preemptions) })
	line("wasted tokens", func(r *result) string {
		wasted := r.stats.TokensAborted + r.stats.TokensRecomputed
		return fmt.Sprintf("%d (%.0f %%)", wasted, 100*float64(wasted)/math.Max(1, float64(r.stats.TokensComputed)))
	})
	line("good by prompt quartile", func(r *result) string { return fmt.Sprintf("%.2f", r.summary.Quartiles) })
	line("attempts without a token", func(r *result) string { return reasons(r.summary.Refused) })
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

// window is how long the load goes before what is counted, and in all.
func (cfg *Config) window() (warm, whole time.Duration) {
	warm = time.Duration(tenantsWarm * float64(cfg.Span))
	return warm, warm + cfg.Span + time.Duration(tenantsTail*float64(cfg.Span))
}
