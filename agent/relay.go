package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"penstock/reason"
	"penstock/response"
	"penstock/vllm"
)

// heartbeatAfter is how long an attempt may be silent before its gateway is told
// that it lives.
const heartbeatAfter = 15 * time.Second

// tokens is a stream of the engine; *vllm.Stream is one.
type tokens interface {
	Next() (vllm.Chunk, error)
	Close()
}

// relay runs the attempt on the engine until ctx or its answer ends. When it
// returns, the upstream connection is closed or idle.
func (a *Agent) relay(ctx context.Context, r *run) outcome {
	req := vllm.Request{Path: r.m.Path, Body: r.m.Body, Attempt: r.attempt, Stream: r.m.Stream, Traceparent: r.m.Traceparent}
	var o outcome
	if r.m.Stream {
		o = a.stream(ctx, r, req)
	} else {
		o = a.plain(ctx, r, req)
	}
	cut := ctx.Err() != nil && o.reason != reason.Finished
	if cut {
		a.metrics.sent.Inc()
	}
	a.core.release(time.Now(), r, o.reason, cut) // the engine is done with it, whatever its record needs
	return o
}

func (a *Agent) plain(ctx context.Context, r *run, req vllm.Request) outcome {
	answer, err := a.engine.do(ctx, req)
	if err != nil {
		return r.fault(ctx, err)
	}
	a.core.progress(time.Now(), r, answer.Usage.Prompt, answer.Usage.Output)
	return outcome{reason: reason.Finished, status: answer.Status, payload: answer.Body, usage: response.Usage(answer.Usage)}
}

// stream relays in the goroutine that reads: no queue and no hop lies between the
// engine's bytes and the mailbox.
func (a *Agent) stream(ctx context.Context, r *run, req vllm.Request) outcome {
	s, err := a.engine.stream(ctx, req)
	if err != nil {
		return r.fault(ctx, err)
	}
	defer s.Close()
	var usage vllm.Usage
	end := func(o outcome) outcome {
		o.usage = response.Usage(usage)
		return o
	}
	for {
		c, err := s.Next()
		if err != nil {
			return end(r.fault(ctx, err))
		}
		usage = c.Usage
		if c.Done {
			return end(outcome{reason: reason.Finished, status: http.StatusOK, payload: c.Bytes})
		}
		now := time.Now()
		a.core.progress(now, r, usage.Prompt, usage.Output)
		if len(c.Bytes) == 0 {
			continue
		}
		if err := a.send(ctx, now, r, c.Bytes); err != nil {
			r.cancel(err)
			return end(r.fault(ctx, err))
		}
	}
}

// send relays one chunk. An error is the cause to end the run with.
func (a *Agent) send(ctx context.Context, now time.Time, r *run, chunk []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = now
	if r.first.Load() {
		return r.w.Append(response.Event{Kind: response.Chunk, Payload: chunk})
	}
	e := response.Event{Kind: response.First, Status: http.StatusOK, Node: a.cfg.Node, Tries: r.tries, Queued: r.began.Sub(r.m.Opened), Payload: chunk}
	event, err := r.w.Encode(e)
	if err != nil {
		return err
	}
	var owner bool
	err = a.repeat(ctx, settleWithin, "first", func(ctx context.Context) error {
		if err = a.flush(ctx, r); err == nil { // a heartbeat may be on its way still
			owner, err = a.deps.Records.First(ctx, r.m.ID, r.attempt, event)
		}
		return err
	})
	if err == nil && !owner {
		err = errLost
	}
	r.first.Store(err == nil)
	return err
}

// flush waits until what r has appended is in its gateway's mailbox.
func (a *Agent) flush(ctx context.Context, r *run) error {
	if a.deps.Flush == nil {
		return nil
	}
	return a.deps.Flush(ctx, r.m.Reply)
}

// beat tells the gateway of every attempt that is silent that it lives. A run
// whose reader is sending is not silent.
func (a *Agent) beat(_ context.Context, now time.Time) {
	var silent []*run
	a.core.each(func(r *run) {
		if !r.renewed.IsZero() {
			silent = append(silent, r)
		}
	})
	for _, r := range silent {
		if !r.mu.TryLock() {
			continue
		}
		if now.Sub(r.last) >= heartbeatAfter {
			r.last = now
			if err := r.w.Append(response.Event{Kind: response.Heartbeat}); err != nil && !errors.Is(err, response.ErrEnded) {
				r.cancel(err)
			}
		}
		r.mu.Unlock()
	}
}
