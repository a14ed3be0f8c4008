package gateway

import (
	"strings"
	"testing"
)

const (
	streamBody = `{"model":"q","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":8}`
	plainBody  = `{"model":"q","messages":[{"role":"user","content":"hi"}],"max_tokens":8}`
	chunk1     = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	chunk2     = "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"
	doneEvent  = "data: [DONE]\n\n"
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
		"Content-Type": streamType, "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Request-Id": "mine",
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
