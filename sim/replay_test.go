package sim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// short is a replay of seconds.
func short(t *testing.T, workload, profile string, policies ...string) Config {
	t.Helper()
	cfg := DefaultConfig()
	var err error
	if cfg.Workload, err = Load(workload); err != nil {
		t.Fatal(err)
	}
	if cfg.Profile, err = LoadProfile(profile); err != nil {
		t.Fatal(err)
	}
	if cfg.Policies, err = FindPolicies(policies); err != nil {
		t.Fatal(err)
	}
	cfg.Loads, cfg.Shifts, cfg.Warm, cfg.Span = []float64{1.5}, 2, 20*time.Second, 40*time.Second
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
	cfg := short(t, "tenants", "kv-bound", "forecast", "concurrency")
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
