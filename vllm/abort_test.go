package vllm

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/reason"
)

// hold writes one content event and waits for the connection to end.
func hold(gone chan<- time.Time) script {
	return func(conn net.Conn, in *bufio.Reader, _ captured) bool {
		conn.Write(unended(contentEvent))
		in.ReadByte()
		gone <- time.Now()
		return false
	}
}

// TestAbortReachesTheEngine measures from the abort to the engine's read error.
func TestAbortReachesTheEngine(t *testing.T) {
	const tries = 50
	for name, abort := range map[string]func(s *Stream, cancel func()){
		"close":          func(s *Stream, _ func()) { s.Close() },
		"cancel":         func(_ *Stream, cancel func()) { cancel() },
		"close and wait": func(s *Stream, _ func()) { go s.Close(); s.Next() },
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan time.Time)
			c := connect(t, serve(t, hold(gone)).url)
			took := make([]time.Duration, tries)
			for i := range took {
				ctx, cancel := context.WithCancel(within(t))
				s, err := c.Stream(ctx, chat)
				if err != nil {
					t.Fatal(err)
				}
				s.Next()
				start := time.Now()
				abort(s, cancel)
				took[i] = (<-gone).Sub(start)
				if _, err := s.Next(); err == nil {
					t.Error("Next after an abort gives an event")
				} else {
					checkError(t, err, reason.Aborted, 0, "")
				}
				s.Close()
				cancel()
			}
			slices.Sort(took)
			t.Logf("close to engine: p50 %v, max %v", took[tries/2], took[tries-1])
			// The promise is 1 ms; a busy test machine gets some room.
			if took[tries/2] > 20*time.Millisecond {
				t.Errorf("p50 is %v, want a millisecond", took[tries/2])
			}
		})
	}
}

// TestAbortHitsOneRequest holds that requests never share a connection.
func TestAbortHitsOneRequest(t *testing.T) {
	gone := make(chan time.Time, 3)
	e := serve(t, hold(gone))
	c := connect(t, e.url)
	var streams []*Stream
	for range 3 {
		s, err := c.Stream(within(t), chat)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		streams = append(streams, s)
	}
	streams[1].Close()
	<-gone
	if seen := e.seen(); seen[0].conn+seen[1].conn+seen[2].conn != 3 {
		t.Errorf("connections %d %d %d, want three different ones", seen[0].conn, seen[1].conn, seen[2].conn)
	}
	select {
	case <-gone:
		t.Error("a second connection was closed")
	default:
	}
}

// TestAbortBeforeTheFirstEvent holds while the engine has sent nothing, or its
// header only.
func TestAbortBeforeTheFirstEvent(t *testing.T) {
	for _, sent := range []string{"", streamHead, streamHead + "8\r\n: ping\n\n\r\n"} {
		gone := make(chan struct{})
		ctx, cancel := context.WithCancelCause(within(t))
		e := serve(t, func(conn net.Conn, in *bufio.Reader, _ captured) bool {
			io.WriteString(conn, sent)
			cancel(errors.New("client left"))
			in.ReadByte()
			close(gone)
			return false
		})
		_, err := connect(t, e.url).Stream(ctx, chat)
		checkError(t, err, reason.Aborted, 0, "client left")
		<-gone
	}
}

// piped is a client and the engine's ends of its connections, in memory.
func piped(cfg Config) (*Client, <-chan net.Conn) {
	conns := make(chan net.Conn, 1)
	return newClient(cfg, "http://engine", func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		conns <- far
		return near, nil
	}), conns
}

// feed plays an engine: after reading a request it writes each text, then waits
// as long as the text before it says, and reports when its peer has closed.
func feed(conns <-chan net.Conn, steps ...any) <-chan time.Time {
	gone := make(chan time.Time, 1)
	go func() {
		conn := <-conns
		defer conn.Close()
		in := bufio.NewReader(conn)
		req, _ := http.ReadRequest(in)
		io.Copy(io.Discard, req.Body)
		go func() {
			for _, step := range steps {
				switch step := step.(type) {
				case time.Duration:
					time.Sleep(step)
				case string:
					if _, err := io.WriteString(conn, step); err != nil {
						return
					}
				}
			}
		}()
		in.ReadByte()
		gone <- time.Now()
	}()
	return gone
}

func TestStall(t *testing.T) {
	event := strings.TrimPrefix(string(unended(contentEvent)), streamHead)
	ping := "8\r\n: ping\n\n\r\n"
	tests := []struct {
		name   string
		steps  []any
		events int
		stall  time.Duration // from the start; 0 = no stall
	}{
		{"no answer at all", nil, 0, StallLimit},
		{"header only", []any{time.Second, streamHead}, 0, StallLimit},
		{"pings do not count", []any{streamHead, 100 * time.Second, ping, 100 * time.Second, ping}, 0, StallLimit},
		{"half an event does not count", []any{streamHead, "6\r\ndata: \r\n", 100 * time.Second, "1\r\n{\r\n"}, 0, StallLimit},
		{"between two events", []any{streamHead, time.Minute, event, 119 * time.Second, event}, 2, 179*time.Second + StallLimit},
		{"slow but alive", []any{
			streamHead, 119 * time.Second, event, 119 * time.Second, event, 119 * time.Second, event,
			"e\r\ndata: [DONE]\n\n\r\n", "0\r\n\r\n",
		}, 4, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, conns := piped(DefaultConfig())
				gone := feed(conns, tt.steps...)
				start := time.Now()
				s, err := c.Stream(t.Context(), chat)
				events := 0
				for err == nil {
					if _, err = s.Next(); err == nil {
						events++
					}
				}
				if events != tt.events {
					t.Errorf("%d events, want %d", events, tt.events)
				}
				if tt.stall == 0 {
					if !errors.Is(err, io.EOF) {
						t.Errorf("ended with %v, want io.EOF", err)
					}
				} else {
					checkError(t, err, reason.Stalled, 0, "no event for the stall limit of 2m0s")
					if got := time.Since(start); got != tt.stall {
						t.Errorf("stalled after %v, want %v", got, tt.stall)
					}
					if at := (<-gone).Sub(start); at != tt.stall {
						t.Errorf("the engine's connection closed after %v, want %v", at, tt.stall)
					}
				}
				if s != nil {
					s.Close()
				}
				c.Close()
				time.Sleep(time.Hour) // feed's own sleeps end
			})
		})
	}
}

// TestSlowReaderIsNotAStall holds when the caller, not the engine, takes long.
func TestSlowReaderIsNotAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, conns := piped(DefaultConfig())
		feed(conns, string(unended(contentEvent+contentEvent+"data: [DONE]\n\n")))
		s, err := c.Stream(t.Context(), chat)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			time.Sleep(time.Hour)
			_, err = s.Next()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v, want io.EOF", err)
		}
		start := time.Now()
		s.Close() // the engine never ends its body
		if got := time.Since(start); got != drainLimit {
			t.Errorf("Close took %v, want the %v it waits for the end", got, drainLimit)
		}
	})
}

// TestIdleConnectionsCloseFirst holds that a pooled connection is closed by us,
// before the engine's own 5 s are over.
func TestIdleConnectionsCloseFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, conns := piped(DefaultConfig())
		gone := feed(conns, string(fixture(t, "chat")))
		if _, err := c.Do(t.Context(), chat); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if got := (<-gone).Sub(start); got != idleLimit {
			t.Errorf("closed after %v, want %v", got, idleLimit)
		}
	})
}
