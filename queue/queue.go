// Package queue carries requests from a gateway to an agent: the message, what a
// handler answers, and the contract every implementation passes (queuetest).
//
// The contract: a lane is FIFO. At most one message of a lane is between delivery
// and its Started signal or its Result (a broker widens a lane by spreading it
// over shards; inside a shard the rule is one until the Result). Delivery is at
// least once: a handler must expect a message it has seen before. A suspended
// message comes back no earlier than asked, holds no goroutine, connection or
// slot meanwhile, and keeps its place: nothing behind it in its lane overtakes it.
// Other lanes do not notice.
package queue

import (
	"context"
	"errors"
	"time"

	"penstock/lane"
)

// MinSuspend is the shortest pause a broker honours (RocketMQ's Go client panics
// below it); Suspend clamps to it everywhere, so both shapes behave alike.
const MinSuspend = 50 * time.Millisecond

// MaxSuspend keeps a suspended message inside the broker's lease (15 s) with room
// for its timer's granularity.
const MaxSuspend = 11 * time.Second

// Version is the format version of a Message.
const Version = 1

// Message is one request on its way to an engine. It is immutable once published.
type Message struct {
	Version  int
	ID       string // 32 hex digits, minted by the gateway: the record's key
	Lane     lane.Key
	Shard    int       // which shard of the lane it is published to; 0 in memory
	Path     string    // the engine's route, e.g. /v1/chat/completions
	Opened   time.Time // when the gateway opened the record
	Deadline time.Time // start deadline; past it the message is dropped

	SLOTTFT      time.Duration // the door's limit; see scheduler
	SLOTTFTNamed bool          // the client named slo_ttft: its own prefill counts
	Patient      bool          // the client named Deadline: it is not given up before
	SLOTPOT      time.Duration
	PromptTokens int // estimated, over all prompts
	SafePrompt   int // tokens that its longest prompt has at least; 0 = not known
	ExpectedOut  int // expected output tokens of one sequence, <= MaxTokens
	MaxTokens    int // 0 = not limited by the client
	Sequences    int // n x prompts, best_of; >= 1
	Stream       bool
	Traceparent  string
	Reply        string // address of the gateway's mailbox
	Body         []byte // the client's bytes, never changed
}

// Tokens is what the request is expected to hold at its end, over all sequences.
func (m *Message) Tokens() int { return m.PromptTokens + m.Sequences*m.ExpectedOut }

// Result is a handler's answer about a message. The zero Result acknowledges it.
type Result struct{ suspend time.Duration }

// Ack removes the message from its lane.
func Ack() Result { return Result{} }

// Suspend gives the message back to the head of its lane, to be delivered again
// after d, clamped to [MinSuspend, MaxSuspend].
func Suspend(d time.Duration) Result { return Result{suspend: min(max(d, MinSuspend), MaxSuspend)} }

// After reports how long to suspend, and false for an Ack.
func (r Result) After() (time.Duration, bool) { return r.suspend, r.suspend > 0 }

// Handler serves one delivery and returns when it is settled. It calls started at
// most once, when the request runs on an engine: a lane in memory then delivers
// its next message. ctx ends when the consumer stops hard, after its drain.
type Handler func(ctx context.Context, m *Message, started func()) Result

// ErrFull is returned by a Publish that would pass a bound; test with errors.Is.
var ErrFull = errors.New("queue: lane full")

// ErrTooLarge is returned by a Publish of a message that no retry makes fit; its
// text names the limit and where it is set.
var ErrTooLarge = errors.New("queue: message too large")

// ErrAway is returned by a Publish that the broker did not confirm in time; the
// message may have arrived, so the record has to be cancelled.
var ErrAway = errors.New("queue: broker away")

// ErrClosed is returned by a Publish after the queue has shut down.
var ErrClosed = errors.New("queue: closed")
