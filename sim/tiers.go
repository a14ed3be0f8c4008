package sim

import (
	"cmp"
	"slices"
	"time"

	"penstock/scheduler"
	"penstock/sim/random"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// The workload "tiers": a first tier's conversations, and within 10 s from the start of
// the measured span a second tier's backlog of short jobs, each of which may start within
// ten minutes.
const (
	lowArrive  = 10 * time.Second
	lowLimit   = 10 * time.Minute
	lowCeiling = 0.02 // of the KV tokens: 40 of these jobs on the smallest profile
)

// LowTier is what becomes of the backlog of the workload "tiers", whose other figures
// are the first tier's.
type LowTier struct {
	Answered float64 `json:"answered"`
	Refused  float64 `json:"refused"`
	Left     float64 `json:"left"`           // at the end of the replay
	Drained  float64 `json:"drained"`        // seconds until the last one was answered; all that were measured where some are left
	TTFT     float64 `json:"ttft_p99_ratio"` // of the first tier's requests until then, over that of the same ones without the backlog
}

// tiersOf are the gate's, none for one.
func tiersOf(w *traces.Workload) []scheduler.Tier {
	if w.Low == 0 {
		return nil
	}
	return []scheduler.Tier{
		{Name: "high", Ceiling: 1, Age: 5 * time.Second},
		{Name: "low", Ceiling: lowCeiling, Age: 2 * time.Minute, SLOTTFT: lowLimit},
	}
}

// backlog adds the second tier's requests.
func (c *Config) backlog(usual []traces.Arrival) []traces.Arrival {
	if c.Workload.Low == 0 {
		return usual
	}
	all := slices.Clone(usual)
	for i := range c.Workload.Low {
		h := random.Mix(c.Seed+2, uint64(i))
		at := c.Warm + lowArrive*time.Duration(i)/time.Duration(c.Workload.Low)
		all = append(all, traces.Arrival{Request: traces.Request{At: at, Prompt: 32 + int(h%65), Output: 4 + int(h>>8%9)}, Tenant: 1, Guess: 1, Low: true})
	}
	slices.SortStableFunc(all, func(a, b traces.Arrival) int { return cmp.Compare(a.At, b.At) })
	return all
}

// lowTier is what became of it; without is of the same world without it.
func (t *tally) lowTier(without *tally) *LowTier {
	l := &LowTier{}
	var last time.Duration
	for _, v := range t.w.Visits {
		switch {
		case !v.Low:
		case v.Phase == world.Over:
			l.Answered++
			last = max(last, v.Last)
		case v.Phase == world.Failed:
			l.Refused++
		default:
			l.Left++
		}
	}
	if l.Left > 0 {
		last = t.w.Now
	}
	p99 := func(w *world.World) float64 {
		var ttft []time.Duration
		for _, v := range w.Visits {
			if !v.Low && v.First > 0 && v.At >= t.warm && v.At < last {
				ttft = append(ttft, v.First-v.Sent)
			}
		}
		return quantile(ttft, .99)
	}
	l.Drained, l.TTFT = max(last-t.warm, 0).Seconds(), p99(t.w)/max(p99(without.w), 1e-9)
	return l
}
