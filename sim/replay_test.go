package sim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"penstock/sim/traces"
	"penstock/sim/world"

	"github.com/google/go-cmp/cmp"
)

// short is a replay of seconds.
func short(t *testing.T, workload, profile string, policies ...string) Config {
	t.Helper()
	cfg := DefaultConfig()
	var err error
	if cfg.Workload, err = traces.Load(workload); err != nil {
		t.Fatal(err)
	}
	if cfg.Profile, err = world.LoadProfile(profile); err != nil {
		t.Fatal(err)
	}
	if cfg.Policies, err = FindPolicies(policies); err != nil {
		t.Fatal(err)
	}
	cfg.Loads, cfg.Shifts, cfg.Warm, cfg.Span = []float64{1.5}, 2, 10*time.Second, 20*time.Second
	return cfg
}

func replay(t *testing.T, cfg Config) []Row {
	t.Helper()
	rows, err := Run(t.Context(), cfg, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestSameSeedSameRows: neither the number of workers nor the run changes a figure;
// another seed does.
func TestSameSeedSameRows(t *testing.T) {
	cfg := short(t, "tenants", "kv-bound", "forecast", "gauge-shed")
	cfg.Clients.Retries = 2
	cfg.Workers = 1
	want := replay(t, cfg)
	cfg.Workers = 4
	if diff := cmp.Diff(want, replay(t, cfg)); diff != "" {
		t.Errorf("other rows with the same seed: %s", diff)
	}
	cfg.Seed++
	if cmp.Equal(want, replay(t, cfg)) {
		t.Error("another seed gave the same rows")
	}
}

// TestTargets holds the law to what it must reach, loosely, on a minute of the
// conversation trace: docs have the figures of whole replays.
func TestTargets(t *testing.T) {
	cfg := short(t, "conv", "kv-bound", "forecast", "oracle", "none")
	cfg.Loads, cfg.Warm, cfg.Span = []float64{0.7, 1.5}, 20*time.Second, 40*time.Second
	at := map[string]Row{}
	for _, r := range replay(t, cfg) {
		at[r.Policy+map[float64]string{0.7: " below", 1.5: " above"}[r.Load]] = r
	}
	if got, want := at["forecast below"].Goodput, at["none below"].Goodput; got < 0.97*want {
		t.Errorf("at 0.7 load goodput %.2f/s, want 0.97 of %.2f without admission", got, want)
	}
	if got, want := at["forecast above"].Goodput, at["none above"].Goodput; got < 3*want {
		t.Errorf("at 1.5 load goodput %.2f/s, want three times the %.2f without admission", got, want)
	}
	if got, want := at["forecast above"].Goodput, at["oracle above"].Goodput; got < 0.9*want {
		t.Errorf("at 1.5 load goodput %.2f/s, want 0.9 of the %.2f with lengths known", got, want)
	}
	if got := at["forecast above"].Preempted; got > 1 {
		t.Errorf("%.1f preemptions per 1,000, want at most 1", got)
	}
	for name, r := range at {
		if r.Spread[0] > r.Goodput || r.Spread[1] < r.Goodput || r.Attainment < 0 || r.Attainment > 1 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Engines find what a trace's ids name, and compute the less; not when told not to.
func TestPrefixCache(t *testing.T) {
	cfg := short(t, "mooncake", "prefill-bound", "none")
	cfg.Shifts, cfg.Warm, cfg.Span = 1, time.Minute, 2*time.Minute
	with := replay(t, cfg)[0]
	cfg.Prefix = false
	without := replay(t, cfg)[0]
	if with.Hits < 0.05 || with.Hits > 0.36 || without.Hits != 0 { // 36 % of the whole trace is repeated
		t.Errorf("%.3f of the tokens were found, %.3f without a cache", with.Hits, without.Hits)
	}
	if with.Offered <= without.Offered {
		t.Errorf("load 1.5 is %.2f/s with and %.2f/s without a cache, want more with it", with.Offered, without.Offered)
	}
}

// A burst's figures are there, and a client who does not listen comes back sooner.
func TestScenarios(t *testing.T) {
	cfg := short(t, "conv", "kv-bound", "forecast")
	cfg.Shifts, cfg.Burst = 1, Burst{3, 5 * time.Second}
	if r := replay(t, cfg)[0]; r.Scenario != "burst 3x5s" || r.Recover == nil || *r.Recover < 0 || *r.Recover > 10 {
		t.Errorf("scenario %q, recovered after %v", r.Scenario, r.Recover)
	}
	cfg.Burst, cfg.Clients.Retries = Burst{}, 3
	obeying := replay(t, cfg)[0]
	cfg.Clients.Obey = 0.5
	half := replay(t, cfg)[0]
	if obeying.Scenario != "retries 3" || half.Scenario != "retries 3, obey 0.5" || cmp.Equal(obeying.Figures, half.Figures) {
		t.Errorf("scenarios %q and %q, figures alike: %v", obeying.Scenario, half.Scenario, cmp.Equal(obeying.Figures, half.Figures))
	}
}

// A backlog behind a tier is worked off, and each of its requests ends once.
func TestTiers(t *testing.T) {
	cfg := short(t, "tiers", "kv-bound", "forecast")
	cfg.Workload.Low = 1000
	cfg.Shifts, cfg.Loads = 1, []float64{0.5}
	r := replay(t, cfg)[0]
	if l := r.Low; l.Answered+l.Refused+l.Left != 1000 || l.Answered < 990 || l.Drained <= 0 || l.TTFT < 0.9 {
		t.Errorf("of the backlog: %+v", *l)
	}
	if r.Attainment < 0.95 || r.Attainment > 1 || r.Fairness != nil {
		t.Errorf("the first tier attains %.3f beside it, fairness %v", r.Attainment, r.Fairness)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Config)
	}{
		{"Workload", func(c *Config) { c.Workload = nil }},
		{"Loads", func(c *Config) { c.Loads = nil }},
		{"a load is 0", func(c *Config) { c.Loads = []float64{0} }},
		{"Shifts is 0", func(c *Config) { c.Shifts = 0 }},
		{"Warm is -1s", func(c *Config) { c.Warm = -time.Second }},
		{"Span is 0s", func(c *Config) { c.Span = 0 }},
		{"Patience is -1s", func(c *Config) { c.Clients.Patience = -time.Second }},
		{"Retries is 11", func(c *Config) { c.Clients.Retries = 11 }},
		{"Obey is 1.5", func(c *Config) { c.Clients.Obey = 1.5 }},
		{"Burst is 3x11s", func(c *Config) { c.Burst = Burst{3, 11 * time.Second} }},
		{"Burst is 0.5x1s", func(c *Config) { c.Burst = Burst{0.5, time.Second} }},
		{"Width is 0", func(c *Config) { c.Width = 0 }},
	} {
		cfg := short(t, "conv", "kv-bound", "none")
		c.change(&cfg)
		if _, err := Run(t.Context(), cfg, func(int, int) {}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, short(t, "conv", "kv-bound", "none"), func(int, int) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancel: %v", err)
	}
}

// BenchmarkReplay is 330 virtual seconds of the conversation trace at 1.5 load.
func BenchmarkReplay(b *testing.B) {
	for _, profile := range world.Profiles() {
		b.Run(profile, func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Workload, _ = traces.Load("conv")
			cfg.Profile, _ = world.LoadProfile(profile)
			cfg.Policies, _ = FindPolicies([]string{"forecast"})
			c, err := measureCapacity(&cfg)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				one := &cell{cfg: &cfg, policy: &cfg.Policies[0], setting: cfg.Policies[0].settings(c)[0], rate: 1.5 * c.requests, shifts: make([]Figures, cfg.Shifts)}
				if err := one.run(0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
