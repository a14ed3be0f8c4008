// Package vllm is the client of one vLLM engine: start a request and read its
// answer event by event, know why it failed, and stop it by closing its
// connection.
package vllm

import (
	"time"

	"penstock/reason"
)

// Request is one attempt to run a client's request on the engine.
type Request struct {
	Path        string // /v1/chat/completions, /v1/completions, /v1/embeddings
	Body        []byte // the client's bytes; only usage injection may change what is sent
	Attempt     string // fresh per attempt, sent as X-Request-Id: a reused id breaks older engines
	Stream      bool   // the body says "stream": true; the caller has read it
	Traceparent string // W3C trace context, passed on; "" or unprintable = not sent
}

// Usage is token counts as the engine reports them. Known is false when the
// counts are ours: one chunk, one token.
type Usage struct {
	Prompt, Output, Cached int
	Known                  bool
}

// Chunk is one complete SSE event as the client may see it, or empty Bytes when
// the event was only for us (an injected usage event).
type Chunk struct {
	Bytes []byte // valid until the next call of Next; ends with a blank line
	Usage Usage  // running totals; Prompt is 0 until the engine said it
	Done  bool   // this is "data: [DONE]": the answer is complete
}

// Answer is a complete 2xx answer that was not streamed.
type Answer struct {
	Status int
	Body   []byte
	Usage  Usage
}

// Error is a failed attempt. Status and Body are the engine's own answer, if it
// gave one (a 4xx is passed on to the client as it is). Reason is one of
//
//	EngineRefused  a 4xx about this request: final
//	EngineBusy     the engine's own cap (503, 429): run again, not billed
//	EngineDrained  the engine is shutting down: run again elsewhere
//	EngineDown     refused connection, 5xx, 401/403 (our key), or broken before
//	               the first event or inside a plain answer: run again
//	Stalled        no event for the stall limit; with no chunk read yet it may run again
//	UpstreamLost   broke after the first event, or past a size bound: final
//	Aborted        the caller's context ended or Close was called
type Error struct {
	Reason reason.Reason
	Status int    // HTTP status, or the code of an error event; 0 = no answer
	Body   []byte // at most 1 MiB; nil if the engine sent more
	Err    error  // URL, status and the engine's message (at most 4 KiB)
}

func (e *Error) Error() string { return e.Reason.String() + ": " + e.Err.Error() }

// Unwrap gives the cause, so errors.Is(err, context.Canceled) holds when the
// caller's context ended the attempt.
func (e *Error) Unwrap() error { return e.Err }

// Model is one entry of the engine's /v1/models.
type Model struct {
	ID          string
	MaxModelLen int // 0 = not said
}

// StallLimit is how long a stream may be silent before its first event or between
// two: silence counts, not total length.
const StallLimit = 120 * time.Second
