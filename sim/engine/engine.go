// Package engine is one inference engine of vLLM's kind as a deterministic step
// function: paged KV blocks, continuous batching, chunked prefill, preemption by
// recomputation, gauges that move only when a step ends. It has no clock, no
// goroutine, no IO and no randomness: the caller says when a step begins and when
// it ends, so the same engine serves HTTP in real time (vllm/simengine) and a
// simulation in virtual time. It is not safe for concurrent use.
//
// The unit is one sequence. A request for n answers, or with n prompts, is n
// sequences. They share what their Prefix names and nothing else.
package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Why Submit refuses. Nothing has been taken in then.
var (
	ErrQueuedReqs   = errors.New("engine: too many sequences in flight")
	ErrQueuedTokens = errors.New("engine: too many prompt tokens in prefill")
)

// Request is one sequence to run.
type Request struct {
	ID     uint64 // unique among the sequences in flight
	Prompt int    // tokens, >= 1
	Output int    // tokens it produces before it stops; 0 = prefill only (embeddings)

	// Ids of the prompt's parts of Config.PrefixTokens each, from its start: equal ids
	// are equal text after equal text. Those whose KV is in the cache are not computed
	// again; a part that is not full never is. nil = not known.
	Prefix []uint64
}

// Kind says what an Event tells.
type Kind uint8

// The kinds of Event.
const (
	Token    Kind = iota + 1 // one more output token, more to come
	Finished                 // the last output token (no token where Output is 0)
	Aborted                  // gone, its blocks are free
)

// Event is what a step did for one sequence; at most one per sequence and step.
type Event struct {
	ID     uint64
	Kind   Kind
	Output int // output tokens so far
}

// StepResult is one whole step.
type StepResult struct {
	Duration time.Duration
	Events   []Event // valid until the next step
}

// sequence is one request inside the engine. Its KV holds computed tokens of
// prompt + out; the step that computes the last of them makes the next output.
type sequence struct {
	Request
	out       int // output tokens produced
	computed  int // tokens in the KV cache
	blocks    int // KV blocks held, those of parts included
	parts     []*part
	named     int // parts that others may find, or that others have named
	scheduled int // tokens being computed in the running step
	preempted int // preemptions not yet counted
	running   bool
	aborted   bool
}

func (s *sequence) pending() int { return s.Prompt + s.out - s.computed }

// Engine is one engine. The zero value is not usable; see New.
type Engine struct {
	cfg       Config
	watermark int // blocks

	incoming []*sequence // submitted, not yet seen by a step
	waiting  []*sequence // first come, first served; preempted ones at the head
	running  []*sequence // in the order of admission
	seqs     map[uint64]*sequence
	aborts   []*sequence // wanted, not yet done

	pool          *pool
	held          int  // tokens in the KV cache, shared ones once for each that reads them
	prefillTokens int  // prompt tokens of sequences without a first token
	stepping      bool // between Begin and End
	events        []Event
	stats         Stats
}

// New makes an idle engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Engine{
		cfg:       cfg,
		watermark: int(cfg.Watermark * float64(cfg.Blocks)),
		pool:      newPool(&cfg),
		seqs:      make(map[uint64]*sequence),
	}, nil
}

// Submit takes in all of rs or none. They join the queue when the next step
// begins; the gauges show them when that step has ended. The error is
// ErrQueuedReqs or ErrQueuedTokens over a cap, else it names the invalid request.
func (e *Engine) Submit(rs ...Request) error {
	tokens := 0
	for i, r := range rs {
		if r.Prompt < 1 || r.Output < 0 || r.Prompt+r.Output > e.cfg.MaxModelLen {
			return fmt.Errorf("engine: request %d has %d prompt and %d output tokens, want 1.. and 0.., together at most %d", r.ID, r.Prompt, r.Output, e.cfg.MaxModelLen)
		}
		if _, dup := e.seqs[r.ID]; dup || slices.ContainsFunc(rs[:i], func(o Request) bool { return o.ID == r.ID }) {
			return fmt.Errorf("engine: request %d is already in flight", r.ID)
		}
		tokens += r.Prompt
	}
	if e.cfg.MaxQueuedReqs > 0 && len(e.seqs)+len(rs) > e.cfg.MaxQueuedReqs {
		e.stats.RejectedReqs++
		return ErrQueuedReqs
	}
	if e.cfg.MaxQueuedTokens > 0 && e.prefillTokens+tokens > e.cfg.MaxQueuedTokens {
		e.stats.RejectedTokens++
		return ErrQueuedTokens
	}
	for _, r := range rs {
		s := &sequence{Request: r}
		e.seqs[r.ID] = s
		e.incoming = append(e.incoming, s)
	}
	e.prefillTokens += tokens
	return nil
}

// Abort frees a sequence when the running step ends, or, between steps, in a step
// of its own where nothing else is to be done. An unknown id is ignored.
func (e *Engine) Abort(id uint64) {
	if s := e.seqs[id]; s != nil && !s.aborted {
		s.aborted = true
		e.aborts = append(e.aborts, s)
	}
}

// Idle reports that a step would do nothing.
func (e *Engine) Idle() bool { return len(e.seqs) == 0 }

// InFlight is the number of sequences submitted and not over, seen by a gauge or not.
func (e *Engine) InFlight() int { return len(e.seqs) }

// Begin starts a step and says how long it takes; 0 where there was only an abort
// to report. The caller lets that time pass, then calls End. Within it Submit adds
// to the next step and Abort acts at the end of this one.
func (e *Engine) Begin() time.Duration {
	if e.stepping {
		return 0
	}
	e.stepping = true
	e.events = e.events[:0]
	e.waiting = append(e.waiting, e.incoming...)
	clear(e.incoming)
	e.incoming = e.incoming[:0]
	e.applyAborts()
	return e.schedule()
}

// End finishes the step: aborts, outputs, then the gauges. Without a Begin it does
// nothing. The events are valid until the next Begin.
func (e *Engine) End() []Event {
	if !e.stepping {
		return nil
	}
	e.stepping = false
	e.applyAborts()
	e.produce()
	e.publish()
	return e.events
}

// Step is Begin and End at once, for callers that submit and abort only between steps.
func (e *Engine) Step() StepResult {
	d := e.Begin()
	return StepResult{Duration: d, Events: e.End()}
}
