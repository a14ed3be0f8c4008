package scraper

import (
	"time"

	"penstock/scheduler"
)

// history turns values into Samples: it remembers the page before.
type history struct {
	before values
	have   bool
}

// sample is a good page as the scheduler sees it. A counter below the last one
// means that the engine's process is new; rates then wait for the next page.
func (h *history) sample(v *values, asked, at time.Time) scheduler.Sample {
	s := scheduler.Sample{
		At:          at,
		Asked:       asked,
		KV:          v.of[kvUsage],
		Running:     int(v.of[running]),
		Waiting:     int(v.of[waiting]),
		KVTokens:    v.capacity(),
		Ranks:       v.ranks,
		Preemptions: v.of[preemptions],
		Tokens:      v.of[promptTokens] + v.of[generatedTokens],
		Steps:       v.of[steps],
		Asleep:      v.alias[awake] >= 0 && v.of[awake] != 1,
	}
	if h.have {
		s.Restarted = h.fell(v)
		if !s.Restarted {
			s.StepTime = h.stepTime(v)
		}
	}
	h.before, h.have = *v, true
	return s
}

// fell looks at the counters that are whole numbers; a sum of seconds may differ
// in its last bit by the order in which engines are added.
func (h *history) fell(v *values) bool {
	for _, f := range [...]int{preemptions, promptTokens, generatedTokens, steps, stepCount} {
		if v.alias[f] >= 0 && v.alias[f] == h.before.alias[f] && v.of[f] < h.before.of[f] {
			return true
		}
	}
	return false
}

// stepTime is the mean time between two tokens since the last page: each running
// sequence notes one per step. 0 when none was noted or the names changed.
func (h *history) stepTime(v *values) time.Duration {
	if v.alias[stepSum] != h.before.alias[stepSum] || v.alias[stepCount] != h.before.alias[stepCount] {
		return 0
	}
	seconds := (v.of[stepSum] - h.before.of[stepSum]) / (v.of[stepCount] - h.before.of[stepCount])
	if !(seconds > 0 && seconds < time.Hour.Seconds()) { // also not a number
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}
