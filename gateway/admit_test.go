package gateway

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/queue"
)

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

// TestBodyCutShort: a client that dies while sending is no request.
func TestBodyCutShort(t *testing.T) {
	s := newStage(t, nil).serve()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", chatPath)
	_ = conn.(*net.TCPConn).CloseWrite()
	defer conn.Close()
	status, _ := bufio.NewReader(conn).ReadString('\n')
	if !strings.Contains(status, "499") {
		t.Errorf("status line %q, want 499", status)
	}
	if len(s.queued) > 0 {
		t.Error("half a body was published")
	}
}
