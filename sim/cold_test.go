package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/sim/engine"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// TestColdStart holds that next to nothing is preempted in the first seconds at twice what
// an engine can do, of which nothing is known, and not more where the gateway, which has
// seen no answer yet either, takes prompts for a quarter of what they are.
func TestColdStart(t *testing.T) {
	p := &world.Profile{Name: "small", Speeds: []float64{1}, Engine: engine.Config{
		Blocks: 1025, BlockSize: 32, MaxModelLen: 8192, MaxSeqs: 128, MaxBatchedTokens: 2048, FullPromptGate: true,
		Base: 4 * time.Millisecond, PerPrefillToken: 10 * time.Microsecond, PerSeq: 20 * time.Microsecond,
	}}
	for name, guess := range map[string]float64{"as they are": 1, "for a quarter": 0.25, "for four times as much": 4} {
		t.Run(name, func(t *testing.T) {
			preempted, finished := uint64(0), uint64(0)
			for seed := range uint64(20) {
				counted, front := built(t, p, world.Clients{Patience: 10 * time.Second}, 1, "forecast")
				counted.w.Run(front, suddenly(seed, guess), time.Minute)
				s := counted.w.Stats()[0]
				preempted += s.Preemptions
				finished += s.Finished
			}
			if finished < 20*100 {
				t.Errorf("%d requests finished, want 100 of each 200 at least", finished)
			}
			if 1000*preempted > finished {
				t.Errorf("%d preemptions over %d requests, want at most one in a thousand", preempted, finished)
			}
			t.Logf("%d preemptions over %d requests", preempted, finished)
		})
	}
}

// suddenly is three seconds of 70 requests a second, whose prompts are estimated wrong
// until the first answers have ended.
func suddenly(seed uint64, guess float64) (all []traces.Arrival) {
	random := rand.New(rand.NewPCG(seed, 2))
	for at := time.Duration(0); at < 3*time.Second; at += time.Duration(random.ExpFloat64() / 70 * float64(time.Second)) {
		a := one(at, int(math.Min(4000, 400*math.Exp(0.7*random.NormFloat64()))), int(math.Min(1000, 150*math.Exp(0.6*random.NormFloat64())))+1)
		if at < 1500*time.Millisecond {
			a.Guess = guess
		}
		all = append(all, a)
	}
	return all
}
