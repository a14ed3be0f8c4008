package agent

import (
	"context"
	"io"
	"testing"
	"time"

	"penstock/agent/attempt"
	"penstock/queue"
	"penstock/registry"
	"penstock/response"
	"penstock/vllm"
)

// endless is an engine's stream without an engine.
type endless struct {
	left  int
	chunk vllm.Chunk
}

func (e *endless) Next() (vllm.Chunk, error) {
	if e.left--; e.left < 0 {
		return vllm.Chunk{}, io.EOF
	}
	e.chunk.Usage.Output++
	e.chunk.Done = e.left == 0
	return e.chunk, nil
}

func (e *endless) Close() {}

// BenchmarkToken is one token's way through the agent: ledger, event, mailbox.
func BenchmarkToken(b *testing.B) {
	n := wire(b, "http://127.0.0.1:1")
	closeBox, err := n.bus.Open("bench", func(response.Event) {})
	check(b, err)
	defer closeBox()
	chunk := vllm.Chunk{Bytes: []byte(`data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","choices":[{"index":0,"text":" word"}]}` + "\n\n")}
	n.agent.engine.Stream = func(context.Context, vllm.Request) (attempt.Tokens, error) {
		return &endless{left: b.N + 1, chunk: chunk}, nil
	}
	m := n.message(100, func(m *queue.Message) { m.Reply = "bench" })
	n.open(m)
	req := n.agent.request(time.Now(), m)
	r := n.agent.newRun(m, attempt.NewName(), n.agent.core.sched.Reserve(time.Now(), &req), nil)
	if c, err := n.agent.records.Claim(b.Context(), registry.Start{ID: m.ID, Attempt: r.Name, Owner: "node-1", Lane: m.Lane, Deadline: m.Deadline, Reply: m.Reply}); err != nil || c.Tries != 1 {
		b.Fatalf("claim: got %+v, %v", c, err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	if o := n.agent.relay(b.Context(), r); o.Err != nil {
		b.Fatal(o.Err)
	}
}
