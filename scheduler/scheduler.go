// Package scheduler decides whether a request may start on one engine now. It is
// a function of values: no clock, IO, log, metric, error, map iteration or
// allocation. The caller serialises access to a State (agent holds a mutex) and
// passes now.
package scheduler

import (
	"time"

	"penstock/reason"
)

// Action is what the caller does with a delivered head.
type Action uint8

const (
	Start   Action = iota + 1 // run it: Reserve, then claim the record
	Hold                      // keep it in the ready room; capacity comes free soon
	Suspend                   // give it back to its lane for After
	Drop                      // it will never run: finish its record
)

// Verdict is the decision and why.
type Verdict struct {
	Action Action
	Reason reason.Reason
	After  time.Duration // Suspend only
}

// Request is a head as the decision sees it. Times are on the caller's clock.
type Request struct {
	Hash         uint64 // of the request's id: spreads what must be spread
	PromptTokens int    // estimated, over all sequences
	SafePrompt   int    // a count that cannot be above the true prompt; 0 = none: only this may prove "too large"
	ExpectedOut  int    // expected output tokens of one sequence
	MaxTokens    int    // 0 = not limited by the client
	Sequences    int    // >= 1
	Opened       time.Time
	Deadline     time.Time
	SLOTTFT      time.Duration
	SLOTTFTNamed bool // the client named it: its own prefill is counted
	Stream       bool // a stream shows progress per token; a plain answer advances by step time
	Aborted      bool // the client is gone
}

// Sample is one good reading of the engine's page. The scraper makes it; a page
// that is not good makes none.
type Sample struct {
	At          time.Time     // when the page had been read
	KV          float64       // KV cache usage 0..1, max over engines of one server
	Running     int           // summed over engines
	Waiting     int           // summed over engines
	KVTokens    int           // usable KV tokens K, summed over DP ranks; 0 = not exported
	Ranks       int           // DP ranks seen, >= 1
	Preemptions float64       // counter, late; see DESIGN.md
	Tokens      float64       // prompt + generation token counters
	Steps       float64       // engine step counter; 0 = not exported
	StepTime    time.Duration // mean since the last sample; 0 = no decode in the window
	Asleep      bool
	Restarted   bool // counters went backwards: the engine's process is new
}

// Peer is another engine that could take the request, filled from its row.
type Peer struct {
	CanStart bool // it says it could start a request of this model now
	Freeness int  // KV tokens it can still take
	At       time.Time
}

// Slot names a reservation in the ledger. The zero Slot is none.
type Slot uint64
