package gateway

import (
	"strings"
	"testing"

	"penstock/gateway/relay"
	"penstock/reason"
	"penstock/response"
)

func TestStream(t *testing.T) {
	s := newStage(t, nil).serve()
	go func() {
		n := s.start()
		n.first(chunk1)
		n.send(2, chunk2)
		n.send(2, doneEvent)
		n.done("")
	}()
	resp := s.post(streamBody, "X-Request-Id", "mine")
	if body := readAll(t, resp.Body); body != chunk1+chunk2+doneEvent {
		t.Errorf("body = %q, want the engine's bytes", body)
	}
	for name, want := range map[string]string{
		"Content-Type": relay.StreamType, "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Request-Id": "mine",
		"X-Penstock-Node": "n1", "X-Penstock-Attempts": "1", "X-Penstock-Queue-Ms": "12", "X-Penstock-Reason": "",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := resp.StatusCode; got != 200 {
		t.Errorf("status = %d, want 200", got)
	}
	eventually(t, "the log line", func() bool { return strings.Contains(s.log.String(), "request finished") })
	if line := s.log.String(); strings.Contains(line, "content") || !strings.Contains(line, "tokens_out=2") {
		t.Errorf("log = %q", line)
	}
}

func TestPlain(t *testing.T) {
	s := newStage(t, nil).serve()
	go func() { s.start().done(`{"id":"x"}`) }()
	resp := s.post(plainBody)
	if body := readAll(t, resp.Body); body != `{"id":"x"}` || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %q %v", resp.StatusCode, body, resp.Header)
	}
}

// TestFailedAttempts maps every terminal event to what the client sees.
func TestFailedAttempts(t *testing.T) {
	for _, c := range []struct {
		event    response.Event
		status   int
		code     string
		noRetry  string
		passedOn string
	}{
		{event: response.Event{Kind: response.Failed, Status: 400, Reason: reason.EngineRefused, Payload: []byte(`{"error":{"code":400}}`)}, status: 400, passedOn: `{"error":{"code":400}}`},
		{event: response.Event{Kind: response.Failed, Status: 404, Reason: reason.EngineRefused, Payload: []byte("odd\ntext")}, status: 404, passedOn: "odd\ntext"},
		{event: response.Event{Kind: response.Failed, Reason: reason.EngineRefused}, status: 400, code: "engine_refused"},
		{event: response.Event{Kind: response.Failed, Status: 500, Reason: reason.EngineDown, Payload: []byte("trace")}, status: 503, code: "engine_down"},
		{event: response.Event{Kind: response.Failed, Reason: reason.EngineBusy}, status: 503, code: "engine_busy"},
		{event: response.Event{Kind: response.Failed, Reason: reason.TriesUsed}, status: 503, code: "tries_used"},
		{event: response.Event{Kind: response.Failed, Reason: reason.UpstreamLost}, status: 503, code: "upstream_lost"},
		{event: response.Event{Kind: response.Failed, Reason: reason.Stalled}, status: 504, code: "stalled"},
		{event: response.Event{Kind: response.Failed}, status: 503, code: "engine_down"},
		{event: response.Event{Kind: response.Dropped, Reason: reason.DeadlinePassed}, status: 504, code: "queue_deadline_exceeded"},
		{event: response.Event{Kind: response.Dropped, Reason: reason.TooLarge}, status: 400, code: "context_length_exceeded"},
		{event: response.Event{Kind: response.Dropped, Reason: reason.Aborted}, status: 503, code: "aborted", noRetry: "false"},
		{event: response.Event{Kind: response.Dropped, Reason: reason.LiveOwner}, status: 503, code: "live_owner"},
	} {
		for _, body := range []string{streamBody, plainBody} {
			t.Run(c.event.Reason.String()+map[bool]string{true: " stream", false: " plain"}[body == streamBody], func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *stage) {
					rec, _, finished := s.ask(body)
					s.start().finish(c.event)
					<-finished
					if rec.code() != c.status || rec.header.Get("X-Should-Retry") != c.noRetry || rec.header.Get("X-Penstock-Reason") == "" {
						t.Errorf("status %d, headers %v, want %d", rec.code(), rec.header, c.status)
					}
					if c.passedOn != "" {
						if rec.body() != c.passedOn {
							t.Errorf("body = %q, want the engine's %q", rec.body(), c.passedOn)
						}
					} else if _, _, code := errorOf(t, rec.body()); code != c.code {
						t.Errorf("code = %q, want %q", code, c.code)
					}
				})
			})
		}
	}
}

// TestBrokenStreams: after the first byte every end but a whole answer is an
// error event and one [DONE].
func TestBrokenStreams(t *testing.T) {
	lostEvent := `data: {"error":{"message":"The connection to the engine broke while it answered. Please try again in 1 second.","type":"service_unavailable_error","param":null,"code":"upstream_lost"}}` + "\n\n" + doneEvent
	for _, c := range []struct {
		name   string
		after  func(n *node)
		want   string
		cancel bool
	}{
		{"engine lost", func(n *node) {
			n.finish(response.Event{Kind: response.Failed, Reason: reason.UpstreamLost})
		}, chunk1 + lostEvent, false},
		{"end without [DONE]", func(n *node) { n.done("") }, chunk1 + lostEvent, false},
		{"[DONE] in the last event", func(n *node) { n.done(doneEvent) }, chunk1 + doneEvent, false},
		{"failure after [DONE]", func(n *node) {
			n.send(response.Chunk, doneEvent)
			n.finish(response.Event{Kind: response.Failed, Reason: reason.UpstreamLost})
		}, chunk1 + doneEvent, false},
		{"hole", func(n *node) {
			n.encode(response.Event{Kind: response.Chunk, Payload: []byte("lost")})
			n.send(response.Chunk, chunk2)
		}, chunk1 + lostEvent, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *stage) {
				rec, _, finished := s.ask(streamBody)
				n := s.start()
				n.first(chunk1)
				c.after(n)
				<-finished
				if got := rec.body(); got != c.want || rec.code() != 200 {
					t.Errorf("got %d %q, want 200 %q", rec.code(), got, c.want)
				}
				if told := len(s.canceled) == 1; told != c.cancel {
					t.Errorf("owner told of %v, want a cancel: %v", s.canceled, c.cancel)
				}
			})
		})
	}
}
