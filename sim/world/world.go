// Package world is virtual time, clients who send requests, and simulated engines with
// whatever lets requests in before them. One world is one goroutine and has no clock:
// the same input gives the same output.
package world

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
	Poll     = 50 * time.Millisecond
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

// Front is what stands between clients and engines. It answers each visit that arrives
// with the world's Submit or Refuse, at once or later.
type Front interface {
	Arrive(v *Visit)                     // takes it, or refuses; visits come in the order of their IDs
	Gone(v *Visit)                       // its client went away; it may be anywhere
	Token(v *Visit)                      // one more token went to the client
	Ended(v *Visit)                      // its last token has, or the engine refused it
	Sample(unit int, s scheduler.Sample) // a page was read
}

// Visit is one attempt of a request. Its times are since the world's beginning.
type Visit struct {
	traces.Arrival
	Origin  int    // index of the request
	Try     int    // from 0
	ID      uint64 // its index in World.Visits
	Hash    uint64 // random id
	Unit    int    // which engine
	Ran     bool   // the engine took it
	Refused bool
	Sent    time.Duration
	First   time.Duration // 0 = no token yet
	Last    time.Duration
	Gap     time.Duration // longest between two tokens
	Out     int           // tokens so far
	Phase   Phase
}

// Phase is how far a visit is.
type Phase uint8

// The phases in their order; Over and Failed are ends.
const (
	Outside Phase = iota // waits before the engine
	Inside               // sent to the engine
	Over                 // answered
	Failed               // refused, or its client went away
)

// Guessed is the prompt as estimated from the body.
func (v *Visit) Guessed() int { return max(int(float64(v.Prompt)*v.Guess), 1) }

// PerToken is the mean time of each token after the first.
func (v *Visit) PerToken() time.Duration { return (v.Last - v.First) / time.Duration(max(v.Out-1, 1)) }

// World is clients, a front and engines.
type World struct {
	Profile *Profile
	Now     time.Duration    // since the beginning
	Visits  []*Visit         // by ID
	OnToken func(v *Visit)   // hears of each token that reaches a client, before the front does
	OnPage  func(kv float64) // hears of each page that is read: its KV usage, 0..1
	clients Clients
	seed    uint64
	events  events
	units   []*unit
	front   Front
}

// unit is one engine and what its page says.
type unit struct {
	w       *World
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

// New makes a world in which nothing has happened. Whoever wants to hear of tokens and
// pages sets OnToken and OnPage before Run.
func New(p *Profile, c Clients, seed uint64) (*World, error) {
	w := &World{Profile: p, OnToken: func(*Visit) {}, OnPage: func(float64) {}, clients: c, seed: seed}
	for i := range p.Speeds {
		e, err := engine.New(p.engine(i))
		if err != nil {
			return nil, err
		}
		u := &unit{w: w, index: i, engine: e}
		w.units = append(w.units, u)
		w.At(time.Duration(i)*Poll/time.Duration(len(p.Speeds)), u.poll)
	}
	return w, nil
}

// Engines is how many there are.
func (w *World) Engines() int { return len(w.units) }

// Stats are those of each engine, by now.
func (w *World) Stats() (all []engine.Stats) {
	for _, u := range w.units {
		all = append(all, u.engine.Stats())
	}
	return all
}

// Time is now as production code wants it.
func (w *World) Time() time.Time { return epoch.Add(w.Now) }

// At does f at a moment that is not past; things of one moment in the order of asking.
func (w *World) At(t time.Duration, f func()) { w.events.push(max(t, w.Now), f) }

// After does f when d is over.
func (w *World) After(d time.Duration, f func()) { w.At(w.Now+d, f) }

// Run plays arrivals, which are in order, through a front until end. It is called once.
func (w *World) Run(front Front, arrivals []traces.Arrival, end time.Duration) {
	w.front = front
	next := 0
	var arrive func()
	arrive = func() {
		w.send(&Visit{Arrival: arrivals[next], Origin: next})
		if next++; next < len(arrivals) {
			w.At(arrivals[next].At, arrive)
		}
	}
	if len(arrivals) > 0 {
		w.At(arrivals[0].At, arrive)
	}
	for len(w.events.heap) > 0 && w.events.heap[0].at <= end {
		e := w.events.pop()
		w.Now = e.at
		e.do()
	}
	w.Now = end
}

func (w *World) send(v *Visit) {
	v.ID, v.Sent = uint64(len(w.Visits)), w.Now
	v.Hash = random.Mix(w.seed, v.ID)
	w.Visits = append(w.Visits, v)
	if w.clients.Patience > 0 && !v.Low {
		w.After(w.clients.Patience, func() { w.leave(v) })
	}
	w.front.Arrive(v)
}

// leave is a client that has waited long enough without a first token.
func (w *World) leave(v *Visit) {
	if v.First > 0 || v.Phase >= Over {
		return
	}
	if v.Phase == Inside {
		w.After(dispatch, func() {
			u := w.units[v.Unit]
			u.engine.Abort(v.ID)
			u.kick()
		})
	}
	v.Phase = Failed
	w.front.Gone(v)
	w.again(v, 0)
}

// Refuse answers a visit that runs nowhere. retry is what the client is told; 0 = nothing.
func (w *World) Refuse(v *Visit, retry time.Duration) {
	v.Phase = Failed
	v.Refused = true
	w.again(v, retry)
}

// again lets the client come back: when it was told if it is one who listens, or after
// 1, 2, 4 s and so on, half of it more or less.
func (w *World) again(v *Visit, retry time.Duration) {
	if v.Try >= w.clients.Retries {
		return
	}
	if retry == 0 || random.Fraction(random.Mix(w.seed+1, uint64(v.Origin))) >= w.clients.Obey {
		retry = time.Duration((0.5 + random.Fraction(v.Hash)) * float64(time.Second<<v.Try))
	}
	w.After(retry, func() { w.send(&Visit{Arrival: v.Arrival, Origin: v.Origin, Try: v.Try + 1}) })
}

// Submit sends a visit to an engine.
func (w *World) Submit(v *Visit, unit int) {
	v.Phase, v.Unit = Inside, unit
	w.After(dispatch, func() {
		if v.Phase != Inside {
			return
		}
		u := w.units[unit]
		if err := u.engine.Submit(engine.Request{ID: v.ID, Prompt: v.Prompt, Output: v.Output, Prefix: v.Prefix}); err != nil {
			w.Refuse(v, 0)
			w.front.Ended(v)
			return
		}
		v.Ran = true
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
	u.w.After(took, func() { u.end(took) })
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
	u.w.After(relay, func() {
		for i := range events {
			u.w.hear(&events[i])
		}
		u.spare = events
	})
	u.kick()
}

// hear is an event of an engine reaching its client.
func (w *World) hear(e *engine.Event) {
	v := w.Visits[e.ID]
	if v.Phase != Inside {
		return // its client is gone
	}
	if v.Out = e.Output; v.First == 0 {
		v.First = w.Now
	} else {
		v.Gap = max(v.Gap, w.Now-v.Last)
	}
	v.Last = w.Now
	w.OnToken(v)
	w.front.Token(v)
	if e.Kind == engine.Finished {
		v.Phase = Over
		w.front.Ended(v)
	}
}

// poll reads the engine's page.
func (u *unit) poll() {
	w, s := u.w, u.engine.Stats()
	w.OnPage(s.KV)
	asked := w.Time()
	p := scheduler.Sample{
		Asked: asked, At: asked.Add(pageAge), KV: s.KV, Running: s.Running, Waiting: s.Waiting, KVTokens: w.Profile.Engine.Capacity(), Ranks: 1,
		Preemptions: float64(s.Preemptions), Tokens: float64(s.PromptTokens + s.GenerationTokens), Steps: float64(s.Steps),
	}
	if n := u.tokens - u.shown.tokens; n > 0 {
		p.StepTime = (u.stepped - u.shown.stepped) / time.Duration(n)
	}
	u.shown.stepped, u.shown.tokens = u.stepped, u.tokens
	w.After(pageAge, func() { w.front.Sample(u.index, p) })
	w.After(Poll, u.poll)
}
