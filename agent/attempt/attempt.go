// Package attempt is one attempt of a request on the engine: what it relays, its
// heartbeats, and how it ended. Who may make it, and what becomes of the outcome, is
// agent's.
package attempt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"penstock/abort"
	"penstock/queue"
	"penstock/reason"
	"penstock/response"
	"penstock/vllm"
)

// heartbeatAfter is how long an attempt may be silent before its gateway is told that
// it lives.
const heartbeatAfter = 15 * time.Second

// Causes with which an attempt's context ends, besides abort.ErrAborted.
var (
	ErrLost      = errors.New("attempt: another one owns the request, or it is over")
	ErrUnrenewed = errors.New("attempt: ownership could not be renewed")
	ErrDrained   = errors.New("attempt: drained before it was done")
	ErrIdle      = errors.New("attempt: engine could not be seen to work for the stall limit")
)

// Attempt is one attempt of Message.
type Attempt struct {
	Message *queue.Message
	Name    string // fence of the record, and the engine's name for the request
	Began   time.Time
	Tries   int // starts so far, this one included; set before Relay
	Cancel  context.CancelCauseFunc

	node  string
	mu    sync.Mutex // guards w and last: the reader writes, and the heartbeat while it is silent
	w     *response.Writer
	last  time.Time   // of the last event
	first atomic.Bool // a byte was relayed
}

// New is an attempt that node makes at now. cancel ends the context that Relay is
// given; carry brings an event to the mailbox at reply.
func New(now time.Time, node string, m *queue.Message, name string, cancel context.CancelCauseFunc, carry func(reply string, event []byte) error) *Attempt {
	return &Attempt{
		Message: m, Name: name, Began: now, Cancel: cancel,
		node: node, last: now, w: response.NewWriter(m.ID, name, m.Reply, carry),
	}
}

// NewName is 128 random bits in hex: a name used twice has crashed engines.
func NewName() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	return hex.EncodeToString(b[:])
}

// Relayed reports whether a byte went to the client: it may not run again.
func (a *Attempt) Relayed() bool { return a.first.Load() }

// Silent is how long no event was sent. An attempt that is sending is not silent.
func (a *Attempt) Silent(now time.Time) time.Duration {
	if !a.mu.TryLock() {
		return 0
	}
	defer a.mu.Unlock()
	return max(now.Sub(a.last), 0)
}

// Beat tells the gateway that a silent attempt lives.
func (a *Attempt) Beat(now time.Time) {
	if !a.mu.TryLock() {
		return
	}
	defer a.mu.Unlock()
	if now.Sub(a.last) < heartbeatAfter {
		return
	}
	a.last = now
	if err := a.w.Append(response.Event{Kind: response.Heartbeat}); err != nil && !errors.Is(err, response.ErrEnded) {
		a.Cancel(err)
	}
}

// Outcome is how an attempt ended.
type Outcome struct {
	Reason  reason.Reason // Finished, or why not
	Status  int           // the engine's, 0 = none
	Payload []byte
	Usage   response.Usage
	Err     error // for the log
}

// Terminal encodes the last event; no heartbeat follows it. An answer over the events'
// limit ends as a failure that says so.
func (a *Attempt) Terminal(kind response.Kind, o Outcome) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := response.Event{
		Kind: kind, Status: o.Status, Reason: o.Reason, Node: a.node, Tries: a.Tries,
		Queued: a.Began.Sub(a.Message.Opened), Usage: o.Usage, Payload: o.Payload,
	}
	event, err := a.w.Encode(e)
	if errors.Is(err, response.ErrTooLarge) {
		e.Kind, e.Status, e.Reason, e.Payload = response.Failed, http.StatusBadGateway, reason.UpstreamLost, nil
		event, err = a.w.Encode(e)
	}
	return event, err
}

// Fault says why an attempt ended with err, or by its context alone.
func Fault(ctx context.Context, err error) Outcome {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, abort.ErrAborted):
		return Outcome{Reason: reason.Aborted, Err: err}
	case errors.Is(cause, response.ErrGone):
		return Outcome{Reason: reason.Orphan, Err: err}
	case errors.Is(cause, ErrLost):
		return Outcome{Reason: reason.LiveOwner, Err: err}
	case errors.Is(cause, ErrIdle):
		return Outcome{Reason: reason.Stalled, Err: err}
	case errors.Is(cause, ErrDrained), errors.Is(cause, context.Canceled): // the latter: the consumer stopped
		return Outcome{Reason: reason.Draining, Err: err}
	case cause != nil: // not renewed, or an event could not be sent
		return Outcome{Reason: reason.RecordStoreAway, Err: cause}
	}
	var e *vllm.Error
	if !errors.As(err, &e) {
		return Outcome{Reason: reason.UpstreamLost, Err: err}
	}
	return Outcome{Reason: e.Reason, Status: e.Status, Payload: e.Body, Err: err}
}
