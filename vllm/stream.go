package vllm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"penstock/reason"
)

// drainLimit is how long Close waits for the end of a complete answer, which
// follows [DONE] at once, so that the connection can be used again.
const drainLimit = 50 * time.Millisecond

var errClosed = errors.New("stream closed")

// Stream is one running request. Next is called by one goroutine; Close by any.
type Stream struct {
	client *Client
	path   string
	ctx    context.Context // ends the upstream connection; its cause says why
	cancel context.CancelCauseFunc
	body   io.ReadCloser

	events  eventReader
	stall   *time.Timer // cancels ctx; runs only while Next waits for the engine
	waiting bool

	asked asked
	tally tally
	first *Chunk // read by Client.Stream, given out by the first Next
	began bool   // an event was read: from here on a failure is final
	err   error  // sticky

	complete atomic.Bool // [DONE] was read
	close    sync.Once
}

// Stream sends a request and waits for its first event, since vLLM answers 200
// before it has admitted the request and may still refuse it in that event.
// Every error is an *Error with nothing committed; otherwise the caller must
// Close. Ending ctx, at any time, closes the engine's connection.
func (c *Client) Stream(ctx context.Context, req Request) (*Stream, error) {
	body, want := req.Body, asked{}
	if c.usage.Load() == usageAccepted {
		body, want = inject(body)
	}
	return c.stream(ctx, req, body, want)
}

func (c *Client) stream(ctx context.Context, req Request, body []byte, want asked) (*Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Stream{client: c, path: req.Path, ctx: ctx, cancel: cancel, asked: want, waiting: true}
	s.tally.n = int(gjson.Get(text(req.Body), "n").Int())
	s.stall = time.AfterFunc(c.cfg.StallLimit, func() { cancel(errStalled) })

	err := s.open(req, body)
	if err == nil {
		var first Chunk
		first, err = s.Next()
		s.first = &first
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// open sends the request and checks the answer's header.
func (s *Stream) open(req Request, body []byte) error {
	resp, err := s.client.post(s.ctx, req, body) //nolint:bodyclose // Close does
	if err != nil {
		return s.broken(err)
	}
	s.body = resp.Body
	if resp.StatusCode/100 != 2 {
		return s.client.refused(s.ctx, s.path, resp)
	}
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return s.broken(fmt.Errorf("status %d: answer is %q, not an event stream", http.StatusOK, kind))
	}
	s.events = eventReader{read: s.read, limit: s.client.cfg.MaxEvent}
	return nil
}

// read is where a stream waits. The stall timer starts with an event's first
// wait and goes on until the event is complete: keep-alive comments of the API
// server do not hide an engine that hangs.
func (s *Stream) read(p []byte) (int, error) {
	if !s.waiting {
		s.waiting = true
		s.stall.Reset(s.client.cfg.StallLimit)
	}
	return s.body.Read(p)
}

// Next returns the next event, the first one included. After the chunk with Done
// it returns io.EOF, which nothing else does. Every other error is an *Error, is
// returned again by later calls, and has closed the engine's connection.
func (s *Stream) Next() (Chunk, error) {
	if s.first != nil {
		first := *s.first
		s.first = nil
		return first, nil
	}
	if s.err != nil {
		return Chunk{}, s.err
	}
	e, err := s.events.next()
	if s.waiting {
		s.waiting = false
		s.stall.Stop()
	}
	var chunk Chunk
	if err != nil {
		err = s.broken(err)
	} else {
		chunk, err = s.chunk(e)
	}
	switch {
	case err != nil:
		s.err = err
		s.Close()
	case chunk.Done:
		s.err = io.EOF
		s.complete.Store(true)
	}
	return chunk, err
}

// chunk is one event as the client may see it.
func (s *Stream) chunk(e event) (Chunk, error) {
	if bytes.Equal(e.data, []byte("[DONE]")) {
		return Chunk{Bytes: e.block, Usage: s.tally.total, Done: true}, nil
	}
	v := view(e.data)
	if !v.valid {
		return Chunk{}, s.broken(fmt.Errorf("event is not JSON: %.200q", e.data))
	}
	if v.failure.Exists() && v.failure.Type != gjson.Null {
		return Chunk{}, s.failed(e.data, int(v.failure.Get("code").Int()))
	}
	s.began = true
	s.tally.add(v)
	block := e.block
	switch {
	case !s.asked.injected || !v.usage.Exists():
	case v.noChoices() && s.asked.final:
	case v.noChoices():
		block = nil
	case !s.asked.continuous:
		block = strip(e, v)
	}
	return Chunk{Bytes: block, Usage: s.tally.total}, nil
}

// failed is an error event: the engine's answer if it is the first, else the end
// of an answer that had begun.
func (s *Stream) failed(data []byte, code int) *Error {
	if code < 400 || code > 599 {
		code = http.StatusInternalServerError
	}
	e := s.client.said(s.path, code, bytes.Clone(data))
	if s.began {
		e.Reason = reason.UpstreamLost
	}
	if len(e.Body) > refusalBytes {
		e.Body = nil
	}
	return e
}

// broken is a stream that ended in any other way than [DONE].
func (s *Stream) broken(err error) *Error {
	why := reason.EngineDown
	if s.began || errors.Is(err, errEventTooLong) {
		why = reason.UpstreamLost
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("answer ended without [DONE]: %w", io.ErrUnexpectedEOF)
	}
	return s.client.broken(s.ctx, s.path, why, err)
}

// Close aborts the request by closing its connection, unless its answer is
// complete: then the connection goes back to the pool. It may be called more than
// once, and while Next waits, which then returns an *Error with reason Aborted.
func (s *Stream) Close() {
	s.close.Do(func() {
		s.stall.Stop()
		if s.complete.Load() {
			s.drain()
		}
		s.cancel(errClosed)
		if s.body != nil {
			s.body.Close()
		}
	})
}

// drain reads the end of the body, which is all that may follow [DONE].
func (s *Stream) drain() {
	s.stall.Reset(drainLimit)
	defer s.stall.Stop()
	var rest [64]byte
	for {
		n, err := s.body.Read(rest[:])
		if n > 0 || err != nil {
			return
		}
	}
}
