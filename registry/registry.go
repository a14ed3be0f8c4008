// Package registry keeps the record of every request: who may run it, whether
// somebody does, and that it ends once; and it refuses at the door what would not
// start in time. The rules are in DESIGN.md; registry/memory keeps them in one
// process, registrytest is the suite every implementation passes.
//
// All calls are safe for concurrent use and idempotent by (id, attempt): a call
// that timed out is repeated. Events cross as encoded bytes with a reply address,
// so that the record and the event it stands for are written in one step.
package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
)

const (
	// Ownership is how long a claim or renewal lasts.
	Ownership = 10 * time.Second
	// RenewEvery is how often an owner renews what it runs, and its directory entry.
	RenewEvery = 3 * time.Second
	// MaxTries is how often a request may be started without a byte relayed.
	MaxTries = 3
	// Keep is how long a record outlives its deadline, renewed while it runs.
	Keep = 10 * time.Minute
)

// State of a record.
type State uint8

// States in the order a request goes through them.
const (
	Unknown   State = iota // no record
	Queued                 // waits in its lane
	Running                // claimed, no byte relayed
	Streaming              // first byte relayed
	Finished               // one outcome exists
)

// Request is what Open needs to know.
type Request struct {
	ID       string
	Lane     lane.Key
	Reply    string // mailbox address of the gateway that waits
	Deadline time.Time
	Tokens   int           // expected tokens over all sequences, prompt and output
	Bytes    int           // size of the body, for the lane's bound
	Limit    time.Duration // longest predicted wait that is worth it; above: refused

	// Fingerprint is a hash of the lane and the body: a refused client that comes back
	// is known by it. 0 = not known, no place is kept.
	Fingerprint uint64

	// Limits must all have room for Tokens; they are taken together with the record, or
	// not at all, and settled when it ends. At most quota.MaxLimits, checked by who makes
	// them.
	Limits   []quota.Limit
	Patience time.Duration // longest Admission.Sleep it sits out; 0 = none
	Slept    bool          // it has slept as it was told
}

// Bounds are those of one lane, within the store's own; 0 = the store's.
type Bounds struct {
	Requests int   // outstanding, queued and running
	Bytes    int64 // of the bodies of these, with what each is charged beside its body
	Width    int   // shards; in memory a lane has none
}

// Drain is how fast the live engines of a model take work, from fleet rows.
type Drain struct {
	Engines int     // live engines that serve the model; 0 = refuse with NoEngine
	Rate    float64 // expected tokens started per second while work waits; 0 = not known yet
}

// Admission is the answer of Open. Reason is OK, or why the request is refused;
// a refusal leaves no record and no count behind.
type Admission struct {
	Reason     reason.Reason
	Wait       time.Duration // predicted wait until start
	Ahead      int           // requests ahead of it
	RetryAfter time.Duration // when refused: come back then; whole seconds, 1..60, the spread is in it: tell exactly this
	Kept       bool          // a place is kept for that moment; false: none within 60 s, or no Fingerprint to know it by
	Shard      int           // which shard of the lane to publish to; 0 in memory

	Quota quota.Verdict // how the request's limits stand; empty where Open was not the first to say OK
	Sleep time.Duration // not refused yet by a limit: sleep so long and open again; 0 = refused
}

// Start asks to run a request.
type Start struct {
	ID, Attempt, Owner string
	Lane               lane.Key // with Deadline and Reply: enough to write a lost record again
	Deadline           time.Time
	Reply              string
	Tokens             int
}

// Action is what a claimer does next.
type Action uint8

// Answers to a claim.
const (
	Run     Action = iota + 1 // it is yours
	Ack                       // it is over: acknowledge the delivery
	Suspend                   // not now: give it back for After
)

// Claim is the answer of Claim.
type Claim struct {
	Action Action
	After  time.Duration
	Reason reason.Reason
	Tries  int // starts so far, this one included
}

// Ref names one attempt of a request. Reply and Streaming are what Renew writes a
// lost record again from; without Reply a terminal event could not be delivered.
type Ref struct {
	ID, Attempt string
	Reply       string
	Streaming   bool // a byte was relayed: it may not run again
}

// Canceled says what Cancel found.
type Canceled struct {
	State   State  // before the cancel; one whose owner let it lapse before the first byte was Queued
	Owner   string // who runs it, if anybody
	Attempt string
}

// Records is the protocol. The gateway calls Open and Cancel, agents the rest.
type Records interface {
	// Open creates the record or refuses.
	Open(ctx context.Context, r Request, d Drain) (Admission, error)
	// Claim makes the caller the owner, or says what to do with the delivery.
	Claim(ctx context.Context, s Start) (Claim, error)
	// Renew prolongs what owner runs and returns the requests it has lost: close
	// their upstream connections.
	Renew(ctx context.Context, owner string, running []Ref) (lost []Ref, err error)
	// First moves running to streaming and appends event; false: not the owner any more.
	First(ctx context.Context, id, attempt string, event []byte) (bool, error)
	// Finish ends the record and appends the terminal event, once. attempt is ""
	// for a request that never started. True: it is over, by this call or an earlier
	// one: acknowledge the delivery. False: another attempt lives, come back later.
	// Where a dead attempt had relayed bytes, the event becomes upstream_lost. What
	// Open took from the request's limits is settled with used, once; a record that the
	// store ends itself gives it back, unless bytes were relayed.
	Finish(ctx context.Context, id, attempt string, event []byte, used quota.Usage) (bool, error)
	// Release gives a running request back to its lane; blameless gives the try back.
	Release(ctx context.Context, id, attempt string, blameless bool) error
	// Cancel ends a queued request, or marks a running one and tells its owner.
	// onlyIfQueued leaves a running one alone.
	Cancel(ctx context.Context, id string, onlyIfQueued bool) (Canceled, error)
}

// Backlog is what waits in the lanes of one tier and model: opened, not started.
type Backlog struct {
	Tier, Model string
	Requests    int
	Tokens      int // expected tokens, prompt and output
	Bytes       int64
	Oldest      time.Duration // age of the oldest; 0 = none waits
	Running     int           // beside what waits: started, not over
}

// Engine is an agent's entry in the engine directory.
type Engine struct {
	Node        string
	GRPC        string // address for aborts and orders; "" in standalone, or where others cannot reach it
	Models      []string
	MaxModelLen int // 0 = not known
	Pool        string
	State       reason.Reason // OK, or why it takes no work
	Since       time.Time     // it takes no work since then; zero = not known, or it does
	Cause       string        // of State, in words: at most 120 bytes, on one line, without addresses; "" = not known
	Seen        time.Time     // last renewal
}

// Why is what a person is told at at who asks why the engine takes no work: "blind
// 12 s: connection refused". "" where it does.
func (e *Engine) Why(at time.Time) string {
	if e.State == reason.OK || e.State == reason.Stale {
		return ""
	}
	text := e.State.String()
	if !e.Since.IsZero() {
		text += fmt.Sprintf(" %d s", max(at.Sub(e.Since), 0)/time.Second)
	}
	if e.Cause != "" {
		text += ": " + e.Cause
	}
	return text
}

// Directory is the list of engines, renewed by agents every RenewEvery and at
// once when something changed.
type Directory interface {
	PutEngine(ctx context.Context, e Engine) error
	Engines(ctx context.Context) ([]Engine, error) // gone entries (10 s) included for a minute, so that a refusal can say when it was last seen
}

// Lane is an entry of the lane directory: a lane that had work within the last 30 min.
type Lane = lane.Entry

// Lanes is the lane directory of a fleet. Open writes a lane's entry and announces
// it before the message is sent; agents subscribe to what they can serve. In memory
// there is none: lanes and consumers meet in queue/memory.
type Lanes interface {
	// Watch calls changed with all live lanes: at once, on every announcement, every
	// 2 s, and when the store is back after it was away. It blocks until ctx ends.
	// changed must not block.
	Watch(ctx context.Context, changed func([]Lane)) error
	// Confirm says that node has subscribed to lanes: Open then need not wait for
	// them. Called by agents after each change of their subscriptions.
	Confirm(ctx context.Context, node string, lanes []lane.Key) error
}

// ErrAway says that the store cannot be reached; test with errors.Is.
var ErrAway = errors.New("registry: store away")
