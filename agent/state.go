package agent

import (
	"time"

	"penstock/fleet"
	"penstock/reason"
	"penstock/scheduler"
)

// Decision is one verdict with what it was made from.
type Decision struct {
	At      time.Time         `json:"at"`
	ID      string            `json:"id"`
	Action  string            `json:"action"`
	Reason  string            `json:"reason"`
	After   time.Duration     `json:"after_ns,omitempty"`
	Request scheduler.Request `json:"request"`
}

// remembered is how many verdicts DebugState shows.
const remembered = 64

// ring keeps the last verdicts.
type ring struct {
	all  [remembered]Decision
	next int
}

func (r *ring) add(d Decision) {
	r.all[r.next%remembered] = d
	r.next++
}

// last returns at most n of them, newest first.
func (r *ring) last(n int) []Decision {
	n = min(n, r.next, remembered)
	out := make([]Decision, 0, n)
	for i := r.next - 1; i >= r.next-n; i-- {
		out = append(out, r.all[i%remembered])
	}
	return out
}

// State is what DebugState shows.
type State struct {
	Node      string           `json:"node"`
	Pool      string           `json:"pool"`
	Models    []string         `json:"models"`
	Condition string           `json:"condition"`
	Gate      string           `json:"gate"` // ok, or what is in a small request's way
	Ready     bool             `json:"ready"`
	Why       string           `json:"why,omitempty"` // not ready, for how long and its cause
	Taking    bool             `json:"taking"`        // lanes are subscribed
	Draining  bool             `json:"draining"`
	Running   int              `json:"running"` // deliveries between start and result
	Sample    scheduler.Sample `json:"sample"`
	Problem   string           `json:"problem,omitempty"` // why the last scrape was bad
	View      scheduler.View   `json:"view"`
	Room      []Held           `json:"room"`
	Runs      []Run            `json:"runs"` // at most shownRuns, in no order
	Store     *StoreFailure    `json:"store_failure,omitempty"`
	Decisions []Decision       `json:"decisions"` // newest first
}

// Held is a head in the room.
type Held struct {
	ID     string `json:"id"`
	Lane   string `json:"lane"`
	Reason string `json:"reason"` // what holds it
}

// Run is one attempt that runs here.
type Run struct {
	ID      string  `json:"id"`
	Attempt string  `json:"attempt"` // the engine's name for it, in its log too
	Age     float64 `json:"age_seconds"`
	Renewed float64 `json:"renewed_seconds"` // since its ownership was confirmed; at 30 it is closed; -1 = not claimed yet
	Tries   int     `json:"tries"`
	Relayed bool    `json:"relayed"` // a byte went to the client: it will not run again
}

// StoreFailure is the last call to the record store that failed.
type StoreFailure struct {
	Call  string    `json:"call"`
	Error string    `json:"error"`
	At    time.Time `json:"at"`
}

// shownRuns bounds State.Runs.
const shownRuns = 100

// state shows the last n verdicts and everything else there is; with n = 0 no runs.
func (a *Agent) state(now time.Time, n int) State {
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{
		Node: a.cfg.Node, Pool: a.cfg.Pool, Models: c.models, Ready: c.health.serving(), Why: c.healthNow().Why(now), Taking: c.health.taking,
		Draining: c.draining, Running: len(c.runs), Sample: c.last, View: c.view(now), Store: a.stumbled.Load(), Decisions: c.verdicts.last(n),
	}
	s.Condition, s.Gate = s.View.Condition.String(), s.View.Gate.String()
	if c.bad != nil {
		s.Problem = c.bad.Error()
	}
	for _, h := range c.room.heads {
		s.Room = append(s.Room, Held{ID: h.id, Lane: h.lane.String(), Reason: h.hold.Reason.String()})
	}
	if n == 0 {
		return s
	}
	for _, r := range c.runs {
		if len(s.Runs) == shownRuns {
			break
		}
		shown := Run{ID: r.m.ID, Attempt: r.attempt, Age: now.Sub(r.began).Seconds(), Renewed: -1, Relayed: r.first.Load()}
		if !r.renewed.IsZero() {
			shown.Renewed, shown.Tries = now.Sub(r.renewed).Seconds(), r.tries // written before the claim was noted
		}
		s.Runs = append(s.Runs, shown)
	}
	return s
}

// Row is the engine as gateways and other agents see it. While nothing may start,
// for whatever reason, no tokens are free.
func (a *Agent) Row(now time.Time) fleet.Row {
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view(now)
	if v.Gate != reason.OK {
		v.Freeness = 0
	}
	return fleet.Row{
		Engine: fleet.ID(a.cfg.Node), Node: a.cfg.Node, Models: fleet.Models(c.models...), Pool: a.cfg.Pool, State: v.Condition,
		Running: v.Running, Waiting: v.Waiting, KV: v.KV, Step: v.StepTime, Freeness: v.Freeness,
		DrainRate: v.DrainRate, FirstToken: v.FirstToken, Start: v.Start, At: now,
	}
}

const (
	// watched bounds the aborts whose effect is looked for, the oldest out first.
	watched = 1024
	// watchFor is how long after an abort its effect is looked for: prefill of a
	// long chunk delays it by a second, more is a leak and must not be counted.
	watchFor = 10 * time.Second
)

// abortWatch counts requests that left the engine after we closed their
// connection: vLLM counts none itself. A fall of its gauges counts up to the number
// of closes before it; so does a sample with no more requests than run here.
type abortWatch struct{ closed []time.Time }

func (w *abortWatch) add(now time.Time) {
	if len(w.closed) == watched {
		w.closed = w.closed[1:]
	}
	w.closed = append(w.closed, now)
}

func (w *abortWatch) observe(before, s scheduler.Sample, running int) (freed int) {
	for len(w.closed) > 0 && s.At.Sub(w.closed[0]) > watchFor {
		w.closed = w.closed[1:]
	}
	n := 0
	for n < len(w.closed) && w.closed[n].Before(s.At) {
		n++
	}
	load := s.Running + s.Waiting
	if load > running {
		n = min(n, max(before.Running+before.Waiting-load, 0))
	}
	w.closed = w.closed[n:]
	return n
}
