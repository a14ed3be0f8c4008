// Package sim replays a trace of requests against simulated engines in virtual time
// and measures what each way to let them in makes of it. Penstock's own way is the
// code of production: registry/door, cost and scheduler, called in agent's order.
// One world is one goroutine and has no clock: the same input gives the same output.
package sim

import (
	"time"

	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/sim/random"
	"penstock/sim/traces"
)

// Delays of the world, the same for every policy. The poll is penstock's own; a
// gauge is as old as a page takes to render and read.
const (
	poll     = 50 * time.Millisecond
	pageAge  = 2 * time.Millisecond
	dispatch = 2 * time.Millisecond // from a decision to the engine's queue
	relay    = time.Millisecond     // from a step's end to the client
)

// epoch is when every world begins; production code wants times of day.
var epoch = time.Unix(1_700_000_000, 0)

// Clients is how those behave who sent the requests.
type Clients struct {
	Patience time.Duration // without a first token for so long they go away, and the engine is told; 0 = never
	Retries  int           // times they come back after a refusal or after they lost patience
	Obey     float64       // share of them that come back when Retry-After says, 0..1
}

// front is what stands between clients and engines.
type front interface {
	arrive(v *visit)                     // takes it, or refuses
	gone(v *visit)                       // its client went away; it may be anywhere
	token(v *visit)                      // one more token went to the client
	ended(v *visit)                      // its last token has, or the engine refused it
	sample(unit int, s scheduler.Sample) // a page was read
}

// visit is one attempt of a request.
type visit struct {
	traces.Arrival
	origin int    // index of the request
	try    int    // from 0
	id     uint64 // its index in world.visits
	hash   uint64 // random id
	unit   int    // which engine
	ran    bool   // the engine took it
	sent   time.Duration
	first  time.Duration // 0 = no token yet
	last   time.Duration
	gap    time.Duration // longest between two tokens
	out    int
	phase  phase
	ticket *ticket // the gate's own
}

type phase uint8

const (
	outside phase = iota // waits before the engine
	inside               // sent to the engine
	over                 // answered
	failed               // refused, or its client went away
)

// guessed is the prompt as estimated from the body.
func (v *visit) guessed() int { return max(int(float64(v.Prompt)*v.Guess), 1) }

// world is clients, a front and engines.
type world struct {
	clients Clients
	seed    uint64
	now     time.Duration
	events  events
	units   []*unit
	visits  []*visit
	front   front
	tally   *tally
}

// unit is one engine and what its page says.
type unit struct {
	w       *world
	index   int
	engine  *engine.Engine
	busy    bool
	stepped time.Duration // sum of the time between tokens, over sequences
	tokens  int           // of so many
	shown   struct {
		stepped time.Duration
		tokens  int
	}
	spare []engine.Event
}

func newWorld(t *tally, c Clients, seed uint64) (*world, error) {
	w, p := &world{clients: c, seed: seed, tally: t}, t.profile
	for i := range p.Speeds {
		e, err := engine.New(p.engine(i))
		if err != nil {
			return nil, err
		}
		u := &unit{w: w, index: i, engine: e}
		w.units = append(w.units, u)
		w.at(time.Duration(i)*poll/time.Duration(len(p.Speeds)), u.poll)
	}
	return w, nil
}

// time is now as production code wants it.
func (w *world) time() time.Time { return epoch.Add(w.now) }

// at does f at a moment that is not past; things of one moment in the order of asking.
func (w *world) at(t time.Duration, f func()) { w.events.push(max(t, w.now), f) }

func (w *world) after(d time.Duration, f func()) { w.at(w.now+d, f) }

// run plays arrivals until end.
func (w *world) run(arrivals []traces.Arrival, end time.Duration) {
	next := 0
	var arrive func()
	arrive = func() {
		w.send(&visit{Arrival: arrivals[next], origin: next})
		if next++; next < len(arrivals) {
			w.at(arrivals[next].At, arrive)
		}
	}
	if len(arrivals) > 0 {
		w.at(arrivals[0].At, arrive)
	}
	for len(w.events.heap) > 0 && w.events.heap[0].at <= end {
		e := w.events.pop()
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *world) send(v *visit) {
	v.id, v.sent = uint64(len(w.visits)), w.now
	v.hash = random.Mix(w.seed, v.id)
	w.visits = append(w.visits, v)
	w.tally.sent(v)
	if w.clients.Patience > 0 && !v.Low {
		w.after(w.clients.Patience, func() { w.leave(v) })
	}
	w.front.arrive(v)
}

// leave is a client that has waited long enough without a first token.
func (w *world) leave(v *visit) {
	if v.first > 0 || v.phase >= over {
		return
	}
	if v.phase == inside {
		w.after(dispatch, func() {
			u := w.units[v.unit]
			u.engine.Abort(v.id)
			u.kick()
		})
	}
	v.phase = failed
	w.front.gone(v)
	w.again(v, 0)
}

// refuse answers a visit that runs nowhere. retry is what the client is told; 0 = nothing.
func (w *world) refuse(v *visit, retry time.Duration) {
	v.phase = failed
	w.tally.refused(v)
	w.again(v, retry)
}

// again lets the client come back: when it was told if it is one who listens, or after
// 1, 2, 4 s and so on, half of it more or less.
func (w *world) again(v *visit, retry time.Duration) {
	if v.try >= w.clients.Retries {
		return
	}
	if retry == 0 || random.Fraction(random.Mix(w.seed+1, uint64(v.origin))) >= w.clients.Obey {
		retry = time.Duration((0.5 + random.Fraction(v.hash)) * float64(time.Second<<v.try))
	}
	w.after(retry, func() { w.send(&visit{Arrival: v.Arrival, origin: v.origin, try: v.try + 1}) })
}

// submit sends a visit to an engine.
func (w *world) submit(v *visit, unit int) {
	v.phase, v.unit = inside, unit
	w.after(dispatch, func() {
		if v.phase != inside {
			return
		}
		u := w.units[unit]
		if err := u.engine.Submit(engine.Request{ID: v.id, Prompt: v.Prompt, Output: v.Output, Prefix: v.Prefix}); err != nil {
			w.refuse(v, 0)
			w.front.ended(v)
			return
		}
		v.ran = true
		u.kick()
	})
}

// kick begins a step where none runs and there is something to do.
func (u *unit) kick() {
	if u.busy || u.engine.Idle() {
		return
	}
	u.busy = true
	took := max(u.engine.Begin(), time.Microsecond) // a step that only aborts takes no time
	u.w.after(took, func() { u.end(took) })
}

func (u *unit) end(took time.Duration) {
	events := append(u.spare[:0], u.engine.End()...)
	u.spare = nil
	u.busy = false
	for i := range events {
		if events[i].Output > 1 {
			u.stepped += took
			u.tokens++
		}
	}
	u.w.after(relay, func() {
		for i := range events {
			u.w.hear(&events[i])
		}
		u.spare = events
	})
	u.kick()
}

// hear is an event of an engine reaching its client.
func (w *world) hear(e *engine.Event) {
	v := w.visits[e.ID]
	if v.phase != inside {
		return // its client is gone
	}
	if v.out = e.Output; v.first == 0 {
		v.first = w.now
	} else {
		v.gap = max(v.gap, w.now-v.last)
	}
	v.last = w.now
	w.tally.served(w.now, v)
	w.front.token(v)
	if e.Kind == engine.Finished {
		v.phase = over
		w.front.ended(v)
	}
}

// poll reads the engine's page.
func (u *unit) poll() {
	w, s := u.w, u.engine.Stats()
	w.tally.page(w.now, s.KV)
	asked := w.time()
	p := scheduler.Sample{
		Asked: asked, At: asked.Add(pageAge), KV: s.KV, Running: s.Running, Waiting: s.Waiting, KVTokens: u.capacity(), Ranks: 1,
		Preemptions: float64(s.Preemptions), Tokens: float64(s.PromptTokens + s.GenerationTokens), Steps: float64(s.Steps),
	}
	if n := u.tokens - u.shown.tokens; n > 0 {
		p.StepTime = (u.stepped - u.shown.stepped) / time.Duration(n)
	}
	u.shown.stepped, u.shown.tokens = u.stepped, u.tokens
	w.after(pageAge, func() { w.front.sample(u.index, p) })
	w.after(poll, u.poll)
}

func (u *unit) capacity() int { return u.w.tally.profile.Engine.Capacity() }

// events is a heap by time, then by order of asking.
type events struct {
	heap []event
	seq  uint64
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (q *events) push(at time.Duration, do func()) {
	q.seq++
	q.heap = append(q.heap, event{at, q.seq, do})
	h := q.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *events) pop() event {
	h := q.heap
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	q.heap = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	return top
}
