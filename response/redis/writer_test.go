package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"penstock/response"
)

func TestBounds(t *testing.T) {
	m := miniredis.RunT(t)
	c := quick(m.Addr(), "test")
	c.Buffer, c.BufferFor = 4<<10, 30*time.Millisecond
	n := newNetwork(t, c)
	s := newSeen()
	open(t, n.r, "gw", s)
	n.agent.cut()
	full, late := &stream{t: t, w: n.w, reply: n.r.Address("gw", "full"), id: "full"}, &stream{t: t, w: n.w, reply: n.r.Address("gw", "late"), id: "late"}
	late.must()
	var err error
	for range 5 {
		if err = full.chunk(1000); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrAway) || full.seq < 4 {
		t.Errorf("event %d over the buffer = %v, want the 4th to be ErrAway", full.seq, err)
	}
	if w := n.w; w.Append(n.r.Address("gw", "big"), response.Append(nil, &response.Event{ID: "big", Attempt: "b", Seq: 1, Kind: response.Chunk, Payload: make([]byte, 64<<10)})) != nil {
		t.Error("a large event alone was refused")
	}
	<-time.After(c.BufferFor + time.Millisecond)
	if err := late.chunk(1); !errors.Is(err, ErrAway) {
		t.Errorf("append after %v without Redis = %v, want ErrAway", c.BufferFor, err)
	}
	if n.w.Ready() {
		t.Error("the writer is ready without Redis")
	}
	n.agent.listen()
	s.until(t, "what was buffered", func() bool { return s.seq["full"] == full.seq-1 && s.seq["late"] == 1 && s.seq["big"] == 1 })
	if err := n.w.Flush(t.Context(), full.reply); err != nil {
		t.Errorf("Flush: %v", err)
	}
	if !n.w.Ready() || n.w.pipes[0].all.bytes.Load() != 0 {
		t.Errorf("after the outage ready is %v and %d B wait, want true and 0", n.w.Ready(), n.w.pipes[0].all.bytes.Load())
	}
}

func TestGone(t *testing.T) {
	for name, kill := range map[string]func(*miniredis.Miniredis, string){
		"its liveness ran out": func(m *miniredis.Miniredis, _ string) { m.Del("test:gw:gw") },
		"its stream ran out":   func(m *miniredis.Miniredis, reply string) { m.Del(reply) },
		"a key of another type": func(m *miniredis.Miniredis, reply string) {
			m.Del(reply)
			_ = m.Set(reply, "x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := miniredis.RunT(t)
			c := quick(m.Addr(), "test")
			c.GoneAfter = 20 * time.Millisecond
			r, w := newReader(t, c), newWriter(t, c)
			background(t, w.Run)
			open(t, r, "gw", newSeen()) // made, and never renewed: r does not run
			st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
			st.must()
			if err := w.Flush(t.Context(), st.reply); err != nil {
				t.Fatalf("Flush: %v", err)
			}
			kill(m, st.reply)
			eventually(t, "an append says that the mailbox is gone", func() bool {
				err := st.chunk(1)
				if err != nil && !errors.Is(err, response.ErrGone) {
					t.Fatalf("append = %v, want ErrGone", err)
				}
				return err != nil
			})
			if err := w.Flush(t.Context(), st.reply); !errors.Is(err, response.ErrGone) {
				t.Errorf("Flush = %v, want ErrGone", err)
			}
			p := w.pipe(st.reply)
			p.mu.Lock()
			defer p.mu.Unlock()
			if n := len(p.attempts); n != 0 {
				t.Errorf("%d attempts are kept for a gone mailbox", n)
			}
		})
	}
}

func TestFlushWaits(t *testing.T) {
	n := newNetwork(t, quick(miniredis.RunT(t).Addr(), "test"))
	open(t, n.r, "gw", newSeen())
	n.agent.stall()
	st := &stream{t: t, w: n.w, reply: n.r.Address("gw", "a"), id: "a"}
	st.must()
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := n.w.Flush(soon, st.reply); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Flush while Redis stalls = %v, want the deadline", err)
	}
	if err := n.w.Flush(t.Context(), "elsewhere"); err != nil {
		t.Errorf("Flush of nothing = %v", err)
	}
	n.agent.resume()
	if err := n.w.Flush(t.Context(), st.reply); err != nil {
		t.Errorf("Flush = %v", err)
	}
}

func TestEnd(t *testing.T) {
	m := miniredis.RunT(t)
	for _, c := range []struct {
		name string
		away bool
		want error
	}{
		{"what waits is sent", false, nil},
		{"what cannot be sent is dropped in time", true, ErrStopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := quick(m.Addr(), "test")
			r := newReader(t, cfg)
			open(t, r, "gw", newSeen())
			p := newProxy(t, cfg.Addr)
			cfg.Addr = p.addr
			if c.away {
				p.cut()
			}
			w := newWriter(t, cfg)
			st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
			st.must()
			flushed := make(chan error, 1)
			go func() { flushed <- w.Flush(context.Background(), st.reply) }()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			if err := w.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("Run ended after %v", took)
			}
			if err := <-flushed; !errors.Is(err, c.want) && !errors.Is(err, ErrStopped) {
				t.Errorf("Flush = %v, want %v", err, c.want)
			}
			if err := st.chunk(1); !errors.Is(err, ErrStopped) {
				t.Errorf("Append after Run = %v, want ErrStopped", err)
			}
		})
	}
	if entries, err := m.Stream("test:mail:gw:0"); err == nil && len(entries) > 2 {
		t.Errorf("stream holds %d entries", len(entries))
	}
}
