package sim

import (
	"math"
	"slices"
	"time"

	"penstock/scheduler"
	"penstock/sim/world"
)

// rules are how a baseline lets requests in.
type rules struct {
	pass func(q *queue, v *world.Visit) bool // whether the first in line may go now; nil = at once
	ttl  time.Duration                       // longest wait in line; 0 = none
	shed bool                                // refuse whoever's first token is predicted to come too late
	even bool                                // and do not count the own prefill, as penstock's rule does not
}

// queue is a baseline: one line, first come first served, before all engines; the
// next request goes to the engine with the fewest.
type queue struct {
	w        *world.World
	rules    rules
	line     []*world.Visit
	gauges   []scheduler.Sample
	inflight []int // requests per engine
	pending  []int // prompt tokens without a first token, per engine
	firsts   []int // requests without a first token, per engine
	ahead    []int // by visit: tokens pending when it went, its own included
	speed    speed
	closed   bool    // for rules with two marks
	level    float64 // for rules with a bucket: tokens
	leaked   time.Duration
}

func newQueue(w *world.World, r rules) *queue {
	n := w.Engines()
	return &queue{w: w, rules: r, gauges: make([]scheduler.Sample, n), inflight: make([]int, n), pending: make([]int, n), firsts: make([]int, n)}
}

func (q *queue) Arrive(v *world.Visit) {
	q.line = append(q.line, v)
	q.pump()
}

// pump lets in who may.
func (q *queue) pump() {
	for len(q.line) > 0 {
		v, unit := q.line[0], q.target()
		waited, ahead := q.w.Now-v.Sent, q.pending[unit]
		if !q.rules.even {
			ahead += v.Guessed()
		}
		switch {
		case q.rules.ttl > 0 && waited > q.rules.ttl,
			q.rules.shed && q.speed.known() && waited+q.speed.predict(ahead) > sloTTFT && (waited > 0 || q.firsts[unit] > 0):
			q.line = q.line[1:]
			q.w.Refuse(v, 0)
			continue
		case q.rules.pass != nil && !q.rules.pass(q, v):
			return
		}
		q.line = q.line[1:]
		q.inflight[unit]++
		q.firsts[unit]++
		q.pending[unit] += v.Guessed()
		q.note(v, q.pending[unit])
		q.w.Submit(v, unit)
	}
}

func (q *queue) note(v *world.Visit, ahead int) {
	for uint64(len(q.ahead)) <= v.ID {
		q.ahead = append(q.ahead, 0)
	}
	q.ahead[v.ID] = ahead
}

// target is the engine with the fewest requests.
func (q *queue) target() (unit int) {
	for i, n := range q.inflight {
		if n < q.inflight[unit] {
			unit = i
		}
	}
	return unit
}

func (q *queue) Gone(v *world.Visit) {
	if i := slices.Index(q.line, v); i >= 0 {
		q.line = slices.Delete(q.line, i, i+1)
		return
	}
	q.begun(v)
	q.inflight[v.Unit]--
	q.pump()
}

// begun takes a visit out of those without a first token.
func (q *queue) begun(v *world.Visit) {
	q.firsts[v.Unit]--
	q.pending[v.Unit] -= v.Guessed()
}

func (q *queue) Token(v *world.Visit) {
	if v.Out == 1 {
		q.speed.learn(q.ahead[v.ID], v.First-v.Sent)
		q.begun(v)
		q.pump()
	}
}

func (q *queue) Ended(v *world.Visit) {
	if v.First == 0 { // the engine's own cap
		q.begun(v)
	}
	q.inflight[v.Unit]--
	q.pump()
}

func (q *queue) Sample(unit int, s scheduler.Sample) {
	q.gauges[unit] = s
	q.pump()
}

// speed predicts the time to a first token from the prompt tokens pending: their
// least-squares slope, and what the prediction was wrong by, mean and twice the mean
// deviation.
type speed struct {
	xx, xy    float64
	mean, dev float64
	n         int
}

func (s *speed) known() bool { return s.n >= 3 }

func (s *speed) learn(tokens int, took time.Duration) {
	const keep, gain = 0.99, 0.05
	x, y := float64(tokens), took.Seconds()
	s.xx, s.xy = keep*s.xx+x*x, keep*s.xy+x*y
	e := y - x*s.xy/s.xx
	s.mean += gain * (e - s.mean)
	s.dev += gain * (math.Abs(e-s.mean) - s.dev)
	s.n++
}

func (s *speed) predict(tokens int) time.Duration {
	return time.Duration((float64(tokens)*s.xy/s.xx + s.mean + 2*s.dev) * float64(time.Second))
}
