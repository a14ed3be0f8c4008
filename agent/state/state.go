// Package state is what an agent shows of itself: one snapshot for people, for gRPC
// and for metrics, so that none of them can say something else than the others.
package state

import (
	"time"

	"penstock/scheduler"
)

const (
	// Remembered is how many verdicts a Ring keeps.
	Remembered = 64
	// ShownRuns bounds State.Runs.
	ShownRuns = 100
)

// State is a snapshot.
type State struct {
	Node      string           `json:"node"`
	Pool      string           `json:"pool"`
	GRPC      string           `json:"grpc"` // address others reach the agent at; "" = they do not
	Models    []string         `json:"models"`
	Condition string           `json:"condition"`
	Gate      string           `json:"gate"`           // ok, or what is in a small request's way
	Shut      string           `json:"shut,omitempty"` // the figures that close the gate of an engine in working order
	Ready     bool             `json:"ready"`
	Why       string           `json:"why,omitempty"` // not ready, for how long and its cause
	Taking    bool             `json:"taking"`        // lanes are subscribed
	Draining  bool             `json:"draining"`
	Running   int              `json:"running"` // deliveries between start and result
	Sample    scheduler.Sample `json:"sample"`
	Problem   string           `json:"problem,omitempty"` // why the last scrape was bad
	View      scheduler.View   `json:"view"`
	Startable int              `json:"startable_tokens"` // of an empty engine: Freeness of them are left
	Room      []Held           `json:"room"`
	Runs      []Run            `json:"runs"` // at most ShownRuns, in no order
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
	Silent  float64 `json:"silent_seconds"`  // since its last event
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

// Decision is one verdict with what it was made from.
type Decision struct {
	At      time.Time         `json:"at"`
	ID      string            `json:"id"`
	Action  string            `json:"action"`
	Reason  string            `json:"reason"`
	After   time.Duration     `json:"after_ns,omitempty"`
	Request scheduler.Request `json:"request"`
}

// Ring keeps the last verdicts. It is not safe for concurrent use.
type Ring struct {
	all  [Remembered]Decision
	next int
}

// Add keeps d and forgets the oldest.
func (r *Ring) Add(d Decision) {
	r.all[r.next%Remembered] = d
	r.next++
}

// Last returns at most n of them, newest first.
func (r *Ring) Last(n int) []Decision {
	n = min(n, r.next, Remembered)
	out := make([]Decision, 0, n)
	for i := r.next - 1; i >= r.next-n; i-- {
		out = append(out, r.all[i%Remembered])
	}
	return out
}
