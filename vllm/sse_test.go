package vllm

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// readAll gives every event's block and data, and the error at the end.
func readAll(src string, piece, limit int) (blocks, data []string, err error) {
	r := eventReader{limit: limit, read: pieces(src, piece)}
	for {
		e, err := r.next()
		if err != nil {
			return blocks, data, err
		}
		blocks, data = append(blocks, string(e.block)), append(data, string(e.data))
	}
}

func pieces(src string, piece int) func([]byte) (int, error) {
	return func(p []byte) (int, error) {
		if src == "" {
			return 0, io.EOF
		}
		n := copy(p[:min(len(p), piece)], src)
		src = src[n:]
		return n, nil
	}
}

func TestEventReader(t *testing.T) {
	tests := []struct {
		name, src string
		want      []string
	}{
		{"as vLLM writes", "data: {\"a\":1}\n\ndata: [DONE]\n\n", []string{"data: {\"a\":1}\n\n", "data: [DONE]\n\n"}},
		{"carriage returns", "data: 1\r\n\r\ndata: 2\r\n\r\n", []string{"data: 1\n\n", "data: 2\n\n"}},
		{"no space", "data:1\n\n", []string{"data: 1\n\n"}},
		{"only one space goes", "data:  1\n\n", []string{"data:  1\n\n"}},
		{"comments", ": ping\n\n:\n\ndata: 1\n: more\n\n", []string{"data: 1\n\n"}},
		{"blank lines", "\n\r\n\ndata: 1\n\n\n\ndata: 2\n\n", []string{"data: 1\n\n", "data: 2\n\n"}},
		{"id and retry", "id: 7\nretry: 10\ndata: 1\n\n", []string{"data: 1\n\n"}},
		{"event name", "data: 1\nevent: error\n\n", []string{"event: error\ndata: 1\n\n"}},
		{"several data lines", "data: {\"a\":\ndata: 1}\n\n", []string{"data: {\"a\": 1}\n\n"}},
		{"data without a value", "data\n\ndata:\n\ndata: 1\n\n", []string{"data: 1\n\n"}},
		{"unknown field", "database: 1\n\n", nil},
		{"unfinished", "data: 1\n\ndata: 2\n", []string{"data: 1\n\n"}},
		{"longer than the first buffer", "data: " + strings.Repeat("x", 3*firstBuffer) + "\n\ndata: 1\n\n", []string{"data: " + strings.Repeat("x", 3*firstBuffer) + "\n\n", "data: 1\n\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1, 5, 1 << 20} {
				got, _, err := readAll(tt.src, piece, 1<<20)
				if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, io.EOF) {
					t.Errorf("pieces of %d: ended with %v; events (-want +got):\n%s", piece, err, diff)
				}
			}
		})
	}
}

func TestEventLimit(t *testing.T) {
	const limit = 10000
	fits := "data: " + strings.Repeat("x", limit-len("data: \n\n")) + "\n\n"
	if got, _, err := readAll(fits+fits, 999, limit); len(got) != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("two events of exactly the limit: %d events and %v, want 2 and io.EOF", len(got), err)
	}
	if got, _, err := readAll("x"+fits, 999, limit); len(got) != 0 || !errors.Is(err, errEventTooLong) {
		t.Errorf("one byte above: %d events and %v, want 0 and %v", len(got), err, errEventTooLong)
	}
	pings := strings.Repeat(": ping\n\n", limit)
	if got, _, err := readAll(pings+fits, 999, limit); len(got) != 1 || !errors.Is(err, io.EOF) {
		t.Errorf("comments do not add up: %d events and %v, want 1 and io.EOF", len(got), err)
	}
}

// FuzzEventReader holds that the size of reads never matters, and that what comes
// out is in the form clients get and reads back as itself.
func FuzzEventReader(f *testing.F) {
	f.Add([]byte("data: {\"a\":1}\n\ndata: [DONE]\n\n"), 3)
	f.Add([]byte(": ping\r\n\r\nevent: e\r\ndata:1\r\ndata: 2\r\n\r\n"), 1)
	f.Add([]byte("data: 1\r2\n\ndata"), 2)
	f.Fuzz(func(t *testing.T, src []byte, piece int) {
		const limit = 1 << 12
		piece = max(piece&0xff, 1)
		blocks, data, err := readAll(string(src), piece, limit)
		whole, _, wholeErr := readAll(string(src), len(src)+1, limit)
		if diff := cmp.Diff(whole, blocks); diff != "" || errors.Is(err, io.EOF) != errors.Is(wholeErr, io.EOF) {
			t.Fatalf("pieces of %d end with %v, the whole with %v; events (-whole +pieces):\n%s", piece, err, wholeErr, diff)
		}
		for i, b := range blocks {
			if !strings.HasSuffix(b, "data: "+data[i]+"\n\n") || data[i] == "" || strings.ContainsAny(data[i], "\r\n") {
				t.Fatalf("event %q with data %q", b, data[i])
			}
		}
		again, _, _ := readAll(strings.Join(blocks, ""), piece, 2*limit)
		if diff := cmp.Diff(blocks, again); diff != "" {
			t.Fatalf("read again (-first +second):\n%s", diff)
		}
	})
}

// endless is a body that gives one content event of a fixture per read, for ever.
type endless struct {
	src []byte
	at  int
}

func newEndless(tb testing.TB, name string) *endless {
	events := strings.SplitAfter(fixtureBody(tb, name), "\n\n")
	return &endless{src: []byte(strings.Join(events[1:9], ""))}
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.src[e.at:e.at+bytes.Index(e.src[e.at:], []byte("\n\n"))+2])
	e.at = (e.at + n) % len(e.src)
	return n, nil
}

func (e *endless) Close() error { return nil }

// streamOver is a Stream without a connection.
func streamOver(body io.ReadCloser) *Stream {
	s := &Stream{client: &Client{cfg: DefaultConfig()}, asked: asked{injected: true}, body: body}
	s.stall = time.NewTimer(StallLimit)
	s.events = eventReader{read: s.read, limit: 1 << 20}
	return s
}

func TestEventsDoNotAllocate(t *testing.T) {
	for _, name := range []string{"chat-stream", "chat-stream-usage-continuous", "completions-stream-usage-continuous"} {
		s := streamOver(newEndless(t, name))
		if got := testing.AllocsPerRun(200, func() {
			if _, err := s.Next(); err != nil {
				t.Fatal(err)
			}
		}); got != 0 {
			t.Errorf("%s: %v allocations per event, want 0", name, got)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	for _, name := range []string{"chat-stream", "chat-stream-usage-continuous"} {
		b.Run(name, func(b *testing.B) {
			s := streamOver(newEndless(b, name))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
