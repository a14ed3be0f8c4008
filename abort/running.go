package abort

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrAborted is the cause (context.Cause) of a context that Cancel ended.
var ErrAborted = errors.New("abort: request aborted")

// Running is the set of requests that run on this agent. It is safe for concurrent
// use. Its size is what the agent runs: who adds an attempt removes it.
type Running struct {
	mu  sync.Mutex // guards ids
	ids map[string][]running
}

type running struct {
	attempt string
	cancel  context.CancelCauseFunc
}

// NewRunning returns an empty set.
func NewRunning() *Running { return &Running{ids: map[string][]running{}} }

// Add notes that attempt of id runs and how to stop it. Adding it again replaces
// its cancel. An empty id is not added.
func (r *Running) Add(id, attempt string, cancel context.CancelCauseFunc) {
	if id == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, a := range r.ids[id] {
		if a.attempt == attempt {
			r.ids[id][i].cancel = cancel
			return
		}
	}
	r.ids[id] = append(r.ids[id], running{attempt, cancel})
}

// Remove forgets attempt of id. It does not cancel it.
func (r *Running) Remove(id, attempt string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := slices.DeleteFunc(r.ids[id], func(a running) bool { return a.attempt == attempt })
	if len(rest) == 0 {
		delete(r.ids, id)
		return
	}
	r.ids[id] = rest
}

// Cancel ends the contexts of id's attempt, or of all its attempts where attempt
// is "", with ErrAborted, and reports whether there was one. They stay in the set
// until removed; cancelling again is harmless. An empty id cancels nothing.
func (r *Running) Cancel(id, attempt string) bool {
	var cancels []context.CancelCauseFunc
	r.mu.Lock()
	for _, a := range r.ids[id] {
		if attempt == "" || a.attempt == attempt {
			cancels = append(cancels, a.cancel)
		}
	}
	r.mu.Unlock()
	for _, cancel := range cancels {
		cancel(ErrAborted)
	}
	return len(cancels) > 0
}

// Has reports whether any attempt of id runs here.
func (r *Running) Has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids[id]) > 0
}

// Len is how many ids run here.
func (r *Running) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids)
}
