//go:build e2e

package sim

import (
	"strings"
	"testing"
	"time"
)

// TestLaw holds the forecast to what does not hang on a detail of the law, on whole
// replays of the conversation trace: three places in it, four minutes each. The full
// table: make bench.
func TestLaw(t *testing.T) {
	cfg := short(t, "conv", "kv-bound", "forecast", "none", "watermark-ttl")
	usual := DefaultConfig()
	cfg.Shifts, cfg.Warm, cfg.Span, cfg.Loads = usual.Shifts, usual.Warm, usual.Span, []float64{0.7, 1.5, 2}
	of := func(policy string, load float64, rows []Row) (best Row) {
		for _, r := range Best(rows) {
			if r.Policy == policy && r.Load == load {
				best = r
			}
		}
		return best
	}
	rows := replay(t, cfg)
	var twoSeconds []Row // as gateways with a saturation detector come; shorter waits are a baseline of the table
	for _, r := range rows {
		if strings.HasSuffix(r.Setting, "wait 2s") {
			twoSeconds = append(twoSeconds, r)
		}
	}
	none := func(load float64) Row { return of("none", load, rows) }
	for _, c := range []struct {
		name  string
		load  float64
		over  Row
		least float64
	}{
		{"no admission", 0.7, none(0.7), 0.99},
		{"no admission", 1.5, none(1.5), 10},
		{"watermark, queue of 5, wait 2 s", 1.5, of("watermark-ttl", 1.5, twoSeconds), 1.8},
		{"watermark, queue of 5, wait 2 s", 2, of("watermark-ttl", 2, twoSeconds), 3},
	} {
		got := of("forecast", c.load, rows)
		t.Logf("load %g: %.2f/s, %.2f of %s (%.2f/s)", c.load, got.Goodput, got.Goodput/max(c.over.Goodput, leastGoodput), c.name, c.over.Goodput)
		if got.Goodput < c.least*c.over.Goodput || got.TokenGoodput < c.least*c.over.TokenGoodput {
			t.Errorf("load %g: %.2f/s and %.0f tokens/s, want %g times the %.2f/s and %.0f tokens/s of %s", c.load,
				got.Goodput, got.TokenGoodput, c.least, c.over.Goodput, c.over.TokenGoodput, c.name)
		}
		if got.Preempted > 1 || got.Even < 0.8 {
			t.Errorf("load %g: %.2f preemptions per 1,000, prompt quartiles %.2f; want at most 1, and the worst at least 0.8 of the best", c.load, got.Preempted, got.Quartiles)
		}
	}

	cfg.Policies, cfg.Loads = cfg.Policies[:1], []float64{1.5}
	without := of("forecast", 1.5, rows)
	for _, obey := range []float64{1, 0} {
		cfg.Clients.Retries, cfg.Clients.Obey = 3, obey
		got := replay(t, cfg)[0]
		t.Logf("with retries, %g of them when told: %.2f of the goodput", obey, got.Goodput/without.Goodput)
		if got.Goodput < 0.9*without.Goodput {
			t.Errorf("three retries, %g of them when told: %.2f/s, want 0.9 of the %.2f/s without", obey, got.Goodput, without.Goodput)
		}
	}

	cfg.Clients, cfg.Loads, cfg.Burst = usual.Clients, []float64{1}, Burst{3, time.Minute}
	if got := *replay(t, cfg)[0].Recover; got > 4 {
		t.Errorf("recovered %.2f s after a burst, want 4 s", got)
	}
}
