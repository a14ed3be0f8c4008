package abort

import "time"

const (
	// watched bounds the closes whose effect is looked for, the oldest out first.
	watched = 1024
	// watchFor is how long after a close its effect is looked for: prefill of a long
	// chunk delays it by a second, more is a leak and must not be counted.
	watchFor = 10 * time.Second
)

// Effect counts requests that left the engine after we closed their connection: vLLM
// counts none itself. A fall of its gauges counts up to the number of closes before
// it; so does a sample with no more requests than run here. It is not safe for
// concurrent use.
type Effect struct{ closed []time.Time }

// Closed notes that a running request's connection was closed on purpose.
func (e *Effect) Closed(now time.Time) {
	if len(e.closed) == watched {
		e.closed = e.closed[1:]
	}
	e.closed = append(e.closed, now)
}

// Observe takes the engine's gauges, running and waiting requests together, of a
// sample made at at and of the one before, and how many requests run here. It returns
// how many closes have shown their effect since the last call.
func (e *Effect) Observe(at time.Time, before, load, here int) (freed int) {
	for len(e.closed) > 0 && at.Sub(e.closed[0]) > watchFor {
		e.closed = e.closed[1:]
	}
	n := 0
	for n < len(e.closed) && e.closed[n].Before(at) {
		n++
	}
	if load > here {
		n = min(n, max(before-load, 0))
	}
	e.closed = e.closed[n:]
	return n
}
