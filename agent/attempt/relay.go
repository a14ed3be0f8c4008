package attempt

import (
	"context"
	"net/http"
	"time"

	"penstock/reason"
	"penstock/response"
	"penstock/vllm"
)

// Tokens is a stream of the engine; *vllm.Stream is one.
type Tokens interface {
	Next() (vllm.Chunk, error)
	Close()
}

// Engine is the vLLM client as attempts use it: a seam for tests.
type Engine struct {
	Stream func(context.Context, vllm.Request) (Tokens, error)
	Do     func(context.Context, vllm.Request) (vllm.Answer, error)
}

// NewEngine sends to c.
func NewEngine(c *vllm.Client) Engine {
	return Engine{Do: c.Do, Stream: func(ctx context.Context, r vllm.Request) (Tokens, error) {
		s, err := c.Stream(ctx, r)
		if err != nil {
			return nil, err // never a non-nil interface around a nil stream
		}
		return s, nil
	}}
}

// Watcher is told what an attempt does. Both are called by the goroutine of Relay.
type Watcher struct {
	// First brings the first event to the mailbox through the record; false: the
	// attempt is not the owner any more.
	First func(ctx context.Context, event []byte) (owner bool, err error)
	// Progress takes the token totals, once per chunk: it must be short.
	Progress func(now time.Time, prompt, output int)
}

// Relay runs the attempt on e until ctx or its answer ends. When it returns, the
// upstream connection is closed or idle.
func (a *Attempt) Relay(ctx context.Context, e Engine, w Watcher) Outcome {
	m := a.Message
	req := vllm.Request{Path: m.Path, Body: m.Body, Attempt: a.Name, Stream: m.Stream, Traceparent: m.Traceparent}
	if m.Stream {
		return a.stream(ctx, e, req, w)
	}
	answer, err := e.Do(ctx, req)
	if err != nil {
		return Fault(ctx, err)
	}
	w.Progress(time.Now(), answer.Usage.Prompt, answer.Usage.Output)
	return Outcome{Reason: reason.Finished, Status: answer.Status, Payload: answer.Body, Usage: response.Usage(answer.Usage)}
}

// stream relays in the goroutine that reads: no queue and no hop lies between the
// engine's bytes and the mailbox.
func (a *Attempt) stream(ctx context.Context, e Engine, req vllm.Request, w Watcher) Outcome {
	s, err := e.Stream(ctx, req)
	if err != nil {
		return Fault(ctx, err)
	}
	defer s.Close()
	var usage vllm.Usage
	end := func(o Outcome) Outcome {
		o.Usage = response.Usage(usage)
		return o
	}
	for {
		c, err := s.Next()
		if err != nil {
			return end(Fault(ctx, err))
		}
		usage = c.Usage
		if c.Done {
			return end(Outcome{Reason: reason.Finished, Status: http.StatusOK, Payload: c.Bytes})
		}
		now := time.Now()
		w.Progress(now, usage.Prompt, usage.Output)
		if len(c.Bytes) == 0 {
			continue
		}
		if err := a.send(ctx, now, w, c.Bytes); err != nil {
			a.Cancel(err)
			return end(Fault(ctx, err))
		}
	}
}

// send relays one chunk. An error is the cause to end the attempt with.
func (a *Attempt) send(ctx context.Context, now time.Time, w Watcher, chunk []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = now
	if a.first.Load() {
		return a.w.Append(response.Event{Kind: response.Chunk, Payload: chunk})
	}
	event, err := a.w.Encode(response.Event{
		Kind: response.First, Status: http.StatusOK, Node: a.node, Tries: a.Tries, Queued: a.Began.Sub(a.Message.Opened), Payload: chunk,
	})
	if err != nil {
		return err
	}
	owner, err := w.First(ctx, event)
	if err == nil && !owner {
		err = ErrLost
	}
	a.first.Store(err == nil)
	return err
}
