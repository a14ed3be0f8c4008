package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"penstock/cmd/penstock/stack"
	"penstock/load"
	"penstock/policy/apikey"
	"penstock/quota"
	"penstock/sim/engine"
	"penstock/vllm/simengine"
)

const (
	// TenantsSpan is what is counted, unless told otherwise.
	TenantsSpan = time.Minute

	// Before the span the engines fill up and the abuser's burst is spent; after it the
	// load goes on, so that the last requests live under it too. Both are a part of the
	// span and are not counted.
	tenantsWarm = 0.25
	tenantsTail = 0.1

	calmLoad   = 0.8  // of what an engine can finish: the load to compare with
	vipShare   = 0.1  // of all requests under overload
	quotaShare = 0.05 // of what the engine can finish: the abuser's quota
)

// tenant is one that sends; nothing but its API key tells it apart.
type tenant struct {
	name  string
	share float64 // of all requests
	rude  bool    // it does not wait until it is told to come back
}

var senders = []tenant{{"abuser", 0.5, true}, {"vip", vipShare, false}, {"normal-1", 0.2, false}, {"normal-2", 0.2, false}}

// load is what a tenant sends, times an engine's capacity, where all together send so
// much. The VIP sends the same requests to all engines, so that what it gets can be
// compared one by one; under less load the others send that much less.
func (t tenant) load(all, overload float64) float64 {
	vip := vipShare * overload
	if t.name == "vip" {
		return vip
	}
	return t.share / (1 - vipShare) * max(all-vip, 0)
}

func (t tenant) key() string { return "key-of-" + t.name }

// tenantsOutput is the mean length of an answer; as in life, nobody is told beforehand.
const tenantsOutput = 72

// tenantsEngine is quick, so that a minute has enough requests of the VIP for a p99.
func tenantsEngine() simengine.Config {
	cfg := smallEngine()
	cfg.MeanOutput = tenantsOutput
	cfg.Engine.Blocks = 2049
	cfg.Engine.Base, cfg.Engine.PerPrefillToken, cfg.Engine.PerSeq = 8*time.Millisecond, 20*time.Microsecond, 40*time.Microsecond
	return cfg
}

// tenantsPolicy is the policy of the demo; the quota is in tokens per minute.
func tenantsPolicy(perMinute int64) string {
	var b strings.Builder
	b.WriteString("tiers:\n  - {name: vip, slo-ttft: 400ms}\n  - {name: normal, ceiling: 0.5}\ntenants:\n")
	for _, t := range senders {
		_, _ = fmt.Fprintf(&b, "  %s: {keys: [%q], tier: ", t.name, apikey.Hash(t.key()))
		switch t.name {
		case "vip":
			b.WriteString("vip}\n")
		case "abuser":
			_, _ = fmt.Fprintf(&b, "normal, quota: {tokens-per-minute: %d}}\n", perMinute)
		default:
			b.WriteString("normal}\n")
		}
	}
	return b.String()
}

// side is one engine of the demo and the load it gets.
type side struct {
	name   string
	load   float64 // times the engine's capacity
	policy bool    // behind penstock

	url         string
	sim         *stack.Simulated
	done, total atomic.Int64
	outcomes    [][]load.Outcome // by tenant
	stats       engine.Stats
}

// Tenants sends the tenants' requests to three engines and says what came of them;
// progress goes to stderr. It takes about a third longer than cfg.Span.
func Tenants(ctx context.Context, cfg Config, stderr io.Writer) (_ *Report, err error) {
	shapes := conversations(cfg.Seed)
	most, err := Capacity(tenantsEngine().Engine, shapes)
	if err != nil {
		return nil, err
	}
	perMinute := int64(quotaShare * most * 60 * meanTokens(shapes))
	dir, err := os.MkdirTemp("", "penstock-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(tenantsPolicy(perMinute)), 0o600); err != nil {
		return nil, err
	}
	r := newRig(ctx, stderr)
	defer func() { err = errors.Join(err, r.end()) }()
	sides := []*side{
		{name: "direct", load: cfg.Overload},
		{name: "penstock", load: cfg.Overload, policy: true},
		{name: "penstock, calm", load: calmLoad, policy: true},
	}
	for _, s := range sides {
		if err := s.start(r, file); err != nil {
			return nil, err
		}
	}
	warm, whole := cfg.window()
	_, _ = fmt.Fprintf(stderr, "one engine finishes %.1f requests/s; sending %.1f/s to two of three for %v, the first %v of it are not counted\n",
		most, cfg.Overload*most, whole.Round(time.Second), warm.Round(time.Second))
	shown := make(chan struct{})
	watch, stop := context.WithCancel(r.ctx)
	go func() { defer close(shown); progress(watch, stderr, sides) }()
	var group errgroup.Group
	for _, s := range sides {
		group.Go(func() error { return s.run(r.ctx, cfg, shapes, most) })
	}
	err = group.Wait()
	stop()
	<-shown
	if err != nil {
		return nil, err
	}
	for _, s := range sides {
		s.stats = s.sim.Stats()
	}
	return newReport(cfg, most, perMinute, sides), nil
}

func meanTokens(shapes []load.Shape) float64 {
	sum := 0
	for _, s := range shapes {
		sum += s.Prompt + s.Output
	}
	return float64(sum) / float64(len(shapes))
}

func (s *side) start(r *rig, file string) (err error) {
	if s.policy {
		s.sim, s.url, err = r.behind(tenantsEngine(), file)
		return err
	}
	if s.sim, err = r.engine(tenantsEngine()); err == nil {
		s.url = s.sim.URL()
	}
	return err
}

// run sends all tenants' requests and returns when the last has ended.
func (s *side) run(ctx context.Context, cfg Config, shapes []load.Shape, most float64) error {
	s.outcomes = make([][]load.Outcome, len(senders))
	_, whole := cfg.window()
	var group errgroup.Group
	for i, t := range senders {
		rate, seed := t.load(s.load, cfg.Overload)*most, cfg.Seed*uint64(len(senders))+uint64(i)
		arrivals := load.Steady(load.Poisson(shapes, rate, max(int(rate*whole.Seconds()), 2), seed), whole)
		for k := range arrivals {
			arrivals[k].Output = 6 * tenantsOutput // the client allows so much; one in 400 would be longer
		}
		s.total.Add(int64(len(arrivals)))
		c := load.Config{
			URL: s.url, Model: tenantsEngine().Model, APIKey: t.key(), Arrivals: arrivals, BytesPerToken: float64(tenantsEngine().BytesPerToken), Natural: true,
			Patience: 5 * time.Second, GiveUp: 15 * time.Second, Retries: 3, ObeyRetry: !t.rude, Backoff: 500 * time.Millisecond, SLO: load.DefaultSLO, Seed: seed,
			Progress: func(int, int) { s.done.Add(1) },
		}
		group.Go(func() (err error) {
			s.outcomes[i], err = load.Run(ctx, c)
			return err
		})
	}
	return group.Wait()
}

// progress says every few seconds how far each side is, until ctx ends.
func progress(ctx context.Context, w io.Writer, sides []*side) {
	begin, tick := time.Now(), time.NewTicker(5*time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		line := fmt.Sprintf("%3.0f s", time.Since(begin).Seconds())
		for _, s := range sides {
			line += fmt.Sprintf("   %s: %d of %d ended", s.name, s.done.Load(), s.total.Load())
		}
		_, _ = fmt.Fprintln(w, line)
	}
}

// allowed is what a quota lets in from the start of a run until it is that old: its rate,
// and the burst an idle bucket holds.
func allowed(perMinute int64, age time.Duration) float64 {
	return float64(perMinute) * (age + quota.Burst).Minutes()
}
