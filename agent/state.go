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
	Taking    bool             `json:"taking"`  // lanes are subscribed
	Running   int              `json:"running"` // deliveries between claim and result
	Sample    scheduler.Sample `json:"sample"`
	Problem   string           `json:"problem,omitempty"` // why the last scrape was bad
	View      scheduler.View   `json:"view"`
	Room      []string         `json:"room"`      // ids of held heads
	Decisions []Decision       `json:"decisions"` // newest first
}

// state shows the last n verdicts and everything else there is.
func (a *Agent) state(now time.Time, n int) State {
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{
		Node: a.cfg.Node, Pool: a.cfg.Pool, Models: c.models, Ready: c.health.serving(), Taking: c.health.taking,
		Running: len(c.runs), Sample: c.last, View: c.view(now), Decisions: c.verdicts.last(n),
	}
	s.Condition, s.Gate = s.View.Condition.String(), s.View.Gate.String()
	if c.bad != nil {
		s.Problem = c.bad.Error()
	}
	for _, h := range c.room.heads {
		s.Room = append(s.Room, h.id)
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
		Node: a.cfg.Node, Models: c.models, Pool: a.cfg.Pool, State: v.Condition,
		Running: v.Running, Waiting: v.Waiting, KV: v.KV, Step: v.StepTime, Freeness: v.Freeness,
		DrainRate: v.DrainRate, FirstToken: v.FirstToken, At: now,
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
