// Package response carries an engine's answer back to the gateway that waits for
// it, as events in order: First or none, Chunks, Heartbeats, then exactly one
// terminal event. The format, its Append and Parse, and the contract every
// implementation passes (responsetest) live here; response/memory is the
// in-process mailbox.
//
// Contract: events of one (ID, Attempt) arrive in the order of Append, each at
// least once, with Seq counting from 1 without holes. A reader that sees a hole
// has lost events. Exactly one terminal event per attempt is the writer's duty
// (Writer). The bytes of an event are the writer's again when Append returns, and
// a mailbox's function copies what it keeps of a Payload. Appending to a mailbox
// that is gone is an error the writer can test for (ErrGone), never a block.
package response

import (
	"errors"
	"time"

	"penstock/reason"
)

// Version is the first byte of an encoded event.
const Version = 1

// Kind says what an Event is.
type Kind uint8

// The kinds, in the order an attempt writes them.
const (
	First     Kind = iota + 1 // the first bytes of a stream, with the meta fields
	Chunk                     // more bytes of a stream
	Heartbeat                 // nothing to relay, the attempt lives
	Done                      // terminal: complete; for a plain answer Payload is the whole body
	Failed                    // terminal: Status and Reason say what happened, Payload an engine's own error body
	Dropped                   // terminal: never started (aborted, deadline passed, too large)
	kindEnd
)

// Terminal reports whether no event of the attempt may follow.
func (k Kind) Terminal() bool { return k >= Done && k < kindEnd }

// Usage is what the engine says it computed, in tokens. Known is false when the
// engine said nothing and the numbers are counted chunks.
type Usage struct {
	Prompt, Output, Cached int
	Known                  bool
}

// Event is one step of an answer. ID and Attempt are 32 hex digits. The meta
// fields (Status, Node, Tries, Queued) travel on First and on terminal events.
type Event struct {
	ID, Attempt string
	Seq         uint64
	Kind        Kind
	Status      int           // HTTP status of the engine's answer
	Reason      reason.Reason // why it ended; terminal events only
	Node        string        // the agent that ran it
	Tries       int           // starts so far, this one included
	Queued      time.Duration // from open to start
	Usage       Usage         // terminal events only
	Payload     []byte        // bytes for the client, unchanged: whole SSE events or a body
}

// ErrGone says that the mailbox's gateway is not there any more.
var ErrGone = errors.New("response: mailbox gone")
