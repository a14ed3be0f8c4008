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
	Attempt     string // fresh per attempt, sent as X-Request-Id
	Stream      bool
	Traceparent string
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
	Bytes []byte // valid until the next call; ends with a blank line
	Usage Usage  // running totals; Prompt is 0 until the engine said it
	Done  bool   // this is "data: [DONE]": the answer is complete
}

// Error is a failed attempt. Status and Body are the engine's own answer, if it
// gave one (a 4xx is passed on to the client as it is).
type Error struct {
	Reason reason.Reason // EngineRefused, EngineBusy, EngineDown, EngineDrained, Stalled, UpstreamLost
	Status int
	Body   []byte
	Err    error
}

// Model is one entry of the engine's /v1/models.
type Model struct {
	ID          string
	MaxModelLen int // 0 = not said
}

// StallLimit is how long a stream may be silent before its first byte or between
// two: silence counts, not total length.
const StallLimit = 120 * time.Second
