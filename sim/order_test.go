package sim

import (
	"testing"
	"time"

	"penstock/sim/world"
)

// TestAbuserCostsOthersLittle: seven tenants keep most of what they have without one
// that sends ten times as much, and none is far ahead of another. docs have the figures
// of whole replays.
func TestAbuserCostsOthersLittle(t *testing.T) {
	for profile, kept := range map[string]float64{"kv-bound": 0.85, "prefill-bound": 0.93} {
		cfg := short(t, "tenants", profile, "forecast")
		cfg.Warm, cfg.Span = 20*time.Second, time.Minute
		f := replay(t, cfg)[0].Fairness
		if f.OthersKept < kept || f.Gap > 0.5*f.Bound {
			t.Errorf("%s: the others keep %.3f, one tenant is %.0f tokens ahead; want %.2f and at most half of %.0f", profile, f.OthersKept, f.Gap, kept, f.Bound)
		}
	}
}

// TestBacklogDrains: short jobs behind a half idle engine are worked off while the
// first tier hardly notices.
func TestBacklogDrains(t *testing.T) {
	cfg := short(t, "tiers", "prefill-bound", "forecast")
	cfg.Workload.Low = 6000
	cfg.Shifts, cfg.Loads, cfg.Warm, cfg.Span, cfg.Clients = 1, []float64{0.5}, 20*time.Second, 90*time.Second, world.Clients{}
	l := replay(t, cfg)[0].Low
	if l.Answered != 6000 || l.Drained > 90 || l.TTFT > 1.1 {
		t.Errorf("%+v; want all answered within 90 s, and the first tier's p99 within a tenth", *l)
	}
}
