package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/gateway/relay"
	"penstock/lane"
	"penstock/queue"
	"penstock/response"
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

func TestMessage(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		body := `{"model":"q","stream":true,"messages":[{"role":"user","content":"12345678"}],"max_tokens":8,"n":2}`
		parent := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		now := time.Now()
		_, gone, finished := s.ask(body, "X-Penstock-Start-Timeout-Ms", "9000", "X-Slo-Ttft-Ms", "700", "X-Slo-Tpot-Ms", "40", "Traceparent", parent)
		got := s.message()
		gone()
		<-finished
		if len(got.ID) != 32 {
			t.Errorf("id %q, want 32 hex digits", got.ID)
		}
		want := &queue.Message{
			Version: queue.Version, ID: got.ID, Lane: lane.Key{Tier: "default", Type: "chat", Model: "q", Tenant: "default"}, Path: chatPath,
			Opened: now, Deadline: now.Add(9 * time.Second), SLOTTFT: 700 * time.Millisecond, SLOTTFTNamed: true, Patient: true, SLOTPOT: 40 * time.Millisecond,
			PromptTokens: 2, ExpectedOut: 8, MaxTokens: 8, Sequences: 2, Stream: true, Traceparent: parent, Reply: s.g.reply, Body: []byte(body),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("message (-want +got)\n%s", diff)
		}
	})
}

func TestUsageIsLearned(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		long := `{"model":"q","messages":[{"role":"user","content":"` + strings.Repeat("x", 8000) + `"}]}`
		var tokens []int
		for range 30 {
			_, _, finished := s.ask(long)
			n := s.start()
			tokens = append(tokens, n.m.PromptTokens)
			n.finish(response.Event{Kind: response.Done, Status: 200, Payload: []byte("{}"), Usage: response.Usage{Prompt: 4000, Output: 1, Known: true}})
			<-finished
		}
		if first, last := tokens[0], tokens[len(tokens)-1]; first != 2000 || last < 3000 {
			t.Errorf("prompt of 8000 bytes quoted as %d, after 30 answers that said 4000: %d", first, last)
		}
	})
}
