package gateway

import (
	"context"
	"time"

	"penstock/gateway/directory"
	"penstock/gateway/journal"
)

// shown bounds the models and the engines of a State.
const shown = 100

// State is what the gateway knows, for /debug/state. Times are seconds.
type State struct {
	Ready     bool               `json:"ready"`
	Why       string             `json:"why,omitempty"` // not ready
	Mailbox   Mailbox            `json:"mailbox"`
	Requests  Requests           `json:"requests"`
	Directory Directory          `json:"directory"`
	Models    []directory.Model  `json:"models"`  // the first in order of name
	Engines   []directory.Engine `json:"engines"` // the first in order of name
	Reasons   []journal.Reason   `json:"reasons"` // every reason so far, the most frequent first
	Refused   []journal.Entry    `json:"refused"` // the last before the queue, newest first
	Failed    []journal.Entry    `json:"failed"`  // the last that had been queued, newest first
	Routed    []journal.Entry    `json:"routed"`  // the last that went through more than one lane, newest first
}

// Mailbox is where the events of this gateway's requests come to.
type Mailbox struct {
	Incarnation string `json:"incarnation"`
	State       string `json:"state"` // open, closed (no request came yet), or why it cannot be opened
}

// Requests are those a client waits for now, by how far they are as heard here. Of
// a plain answer nothing is heard for 15 s from its start.
type Requests struct {
	Open      int `json:"open"`
	Arriving  int `json:"arriving"`  // their bodies, or the door's answer, are on their way
	Queued    int `json:"queued"`    // in a lane, nothing heard
	Running   int `json:"running"`   // heard of, without a byte of the answer
	Streaming int `json:"streaming"` // bytes of the answer came
	Plain     int `json:"plain"`     // of queued and running, those that do not stream
}

// Directory says how old the knowledge of engines is.
type Directory struct {
	Age   float64 `json:"age_seconds"`     // -1 = never read
	Error string  `json:"error,omitempty"` // it cannot be read now
	// Beyond what is shown.
	MoreModels  int `json:"more_models,omitempty"`
	MoreEngines int `json:"more_engines,omitempty"`
}

// DebugState shows what the gateway knows. Any goroutine may call it; where the
// directory was not read within the last second it reads it, for at most
// directoryWait.
func (g *Gateway) DebugState() State {
	s := State{Mailbox: Mailbox{Incarnation: g.reply, State: *g.mailState.Load()}}
	s.Ready, s.Why = g.Ready()
	n := g.inboxes.Count()
	s.Requests = Requests{Open: int(g.open.Load()), Queued: n.Queued, Running: n.Running, Streaming: n.Streaming, Plain: n.Plain}
	s.Requests.Arriving = max(s.Requests.Open-s.Requests.Queued-s.Requests.Running-s.Requests.Streaming, 0)
	known, err := g.directory.Read(context.Background(), directory.Fresh)
	if err != nil {
		s.Directory.Error = err.Error()
		known = g.directory.Last()
	}
	now := time.Now()
	s.Directory.Age = -1
	if known == nil {
		known = &directory.Reading{}
	} else {
		s.Directory.Age = now.Sub(known.At).Seconds()
	}
	s.Models, s.Directory.MoreModels = first(g.directory.Models(known, now))
	s.Engines, s.Directory.MoreEngines = first(g.directory.Engines(known, now))
	s.Reasons, s.Refused, s.Failed, s.Routed = g.journal.Show(now)
	return s
}

// first cuts list to what is shown and says how much is not.
func first[T any](list []T) (head []T, more int) {
	n := min(len(list), shown)
	return list[:n], len(list) - n
}
