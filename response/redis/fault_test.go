package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"penstock/response"
)

// seen is what a gateway sees of attempts: the order of the first of each event.
type seen struct {
	mu    sync.Mutex // guards what follows
	seq   map[string]uint64
	holes int
	again int
	more  chan struct{} // closed and made anew with each event
}

func newSeen() *seen { return &seen{seq: map[string]uint64{}, more: make(chan struct{})} }

func (s *seen) handle(e response.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch at := s.seq[e.ID]; {
	case e.Seq <= at:
		s.again++
		return
	case e.Seq > at+1:
		s.holes++
	}
	s.seq[e.ID] = e.Seq
	close(s.more)
	s.more = make(chan struct{})
}

// until waits until cond, which is called with the lock held.
func (s *seen) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		ok, more, state := cond(), s.more, fmt.Sprintf("%d ids, %d holes, %d again", len(s.seq), s.holes, s.again)
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-more:
		case <-limit:
			t.Fatalf("not within 10 s: %s; seen %s", what, state)
		}
	}
}

func (s *seen) has(id string, seq uint64) func() bool {
	return func() bool { return s.seq[id] >= seq }
}

// eventually waits for what no event announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); !cond(); <-time.After(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

// stream is one attempt's writer.
type stream struct {
	t     testing.TB
	w     *Writer
	reply string
	id    string
	seq   uint64
}

func (s *stream) chunk(size int) error {
	s.seq++
	return s.w.Append(s.reply, response.Append(nil, &response.Event{
		ID: s.id, Attempt: s.id, Seq: s.seq, Kind: response.Chunk, Payload: make([]byte, size),
	}))
}

func (s *stream) must() {
	s.t.Helper()
	if err := s.chunk(100); err != nil {
		s.t.Fatalf("append %d of %s: %v", s.seq, s.id, err)
	}
}

func open(t testing.TB, r *Reader, incarnation string, s *seen) {
	t.Helper()
	closeBox, err := r.Open(incarnation, s.handle)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(closeBox)
}

// network is a gateway and an agent with a Redis, each over a network of its own.
type network struct {
	gateway, agent *proxy
	r              *Reader
	w              *Writer
}

func newNetwork(t *testing.T, c Config) *network {
	n := &network{gateway: newProxy(t, c.Addr), agent: newProxy(t, c.Addr)}
	c.Timeout = 50 * time.Millisecond
	c.Addr = n.gateway.addr
	n.r = newReader(t, c)
	background(t, n.r.Run)
	c.Addr = n.agent.addr
	n.w = newWriter(t, c)
	background(t, n.w.Run)
	return n
}

// faults cuts, breaks and stalls both networks while ten streams are written; all
// outages are within the bounds, so nothing may be missing.
func faults(t *testing.T, c Config) {
	c.GoneAfter = 5 * time.Second
	n := newNetwork(t, c)
	s := newSeen()
	open(t, n.r, "gw", s)
	var streams []*stream
	for i := range 10 {
		id := fmt.Sprintf("%032x", i)
		streams = append(streams, &stream{t: t, w: n.w, reply: n.r.Address("gw", id), id: id})
	}
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	write := func(rounds int) {
		for range rounds {
			<-every.C
			for _, st := range streams {
				st.must()
			}
		}
	}
	back := func() { eventually(t, "both are back", func() bool { return n.w.Ready() && n.r.Ready() }) }
	for _, p := range []*proxy{n.agent, n.gateway} {
		write(20)
		p.breakAll()
		write(20)
		p.cut()
		write(100)
		p.listen()
		back()
		write(20)
		p.stall()
		write(150) // two timeouts or more
		p.resume()
		back()
		write(20)
		p.stall()
		write(60)
		p.breakAll()
		p.resume()
	}
	for _, st := range streams {
		s.until(t, "every event of "+st.id, s.has(st.id, st.seq))
	}
	if s.holes > 0 {
		t.Errorf("%d holes in streams that lost nothing", s.holes)
	}
	t.Logf("%d events came again", s.again)
}

func TestFaults(t *testing.T) { faults(t, quick(miniredis.RunT(t).Addr(), "test")) }

// emptied loses the streams while they are written.
func emptied(t *testing.T, c Config, empty func()) {
	r, w := pair(t, c)
	s := newSeen()
	open(t, r, "gw", s)
	st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
	st.must()
	s.until(t, "the first event", s.has("a", 1))
	for range 3 {
		empty()
		for range 50 {
			st.must()
		}
		s.until(t, "the events after the loss", s.has("a", st.seq))
	}
	if s.holes > 0 {
		t.Errorf("%d holes, though nothing was in Redis when it was emptied", s.holes)
	}
}

func TestEmptied(t *testing.T) {
	m := miniredis.RunT(t)
	emptied(t, quick(m.Addr(), "test"), m.FlushAll)
}

func TestClockBehind(t *testing.T) {
	m := miniredis.RunT(t)
	now := time.Now()
	m.SetTime(now)
	emptied(t, quick(m.Addr(), "test"), func() {
		m.FlushAll()
		now = now.Add(-time.Minute)
		m.SetTime(now)
	})
}

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

func TestOpenWhileAway(t *testing.T) {
	n := newNetwork(t, quick(miniredis.RunT(t).Addr(), "test"))
	n.gateway.cut()
	s := newSeen()
	open(t, n.r, "gw", s)
	if n.r.Ready() {
		t.Error("the reader is ready without Redis")
	}
	n.gateway.listen()
	st := &stream{t: t, w: n.w, reply: n.r.Address("gw", "a"), id: "a"}
	eventually(t, "the reader is ready with Redis back", n.r.Ready)
	st.must()
	s.until(t, "the event", s.has("a", 1))
}

func TestOpenRefuses(t *testing.T) {
	r := newReader(t, quick(miniredis.RunT(t).Addr(), "test"))
	open(t, r, "gw", newSeen())
	for _, bad := range []string{"", "a:b", "gw"} {
		if _, err := r.Open(bad, func(response.Event) {}); err == nil {
			t.Errorf("Open(%q) succeeded", bad)
		}
	}
}

// trimmed says that Redis holds little of what was dispatched.
func trimmed(t *testing.T, c Config, length func(key string) int) {
	r, w := pair(t, c)
	s := newSeen()
	open(t, r, "gw", s)
	st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
	for range 3000 {
		st.must()
	}
	s.until(t, "all events", s.has("a", st.seq))
	eventually(t, "at most one node of the stream stays", func() bool { return length(st.reply) <= 100 })
}

func TestTrimmed(t *testing.T) {
	m := miniredis.RunT(t)
	trimmed(t, quick(m.Addr(), "test"), func(key string) int {
		entries, _ := m.Stream(key)
		return len(entries)
	})
}

func TestUnreadIsBounded(t *testing.T) {
	m := miniredis.RunT(t)
	c := quick(m.Addr(), "test")
	c.MaxLen, c.Alive, c.Keep = 1024, time.Minute, time.Minute
	r, w := newReader(t, c), newWriter(t, c)
	background(t, w.Run)
	s := newSeen()
	open(t, r, "gw", s)
	st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
	for range 3000 {
		st.must()
	}
	if err := w.Flush(t.Context(), st.reply); err != nil {
		t.Fatalf("Flush: %v", err)
	}
	if entries, err := m.Stream(st.reply); err != nil || len(entries) != 1024 {
		t.Errorf("%d entries and %v, want 1024", len(entries), err)
	}
	background(t, r.Run)
	s.until(t, "the newest event", s.has("a", st.seq))
	if s.holes != 1 {
		t.Errorf("%d holes, want the one that shows the loss", s.holes)
	}
}

func TestForeignEntries(t *testing.T) {
	m := miniredis.RunT(t)
	r, w := pair(t, quick(m.Addr(), "test"))
	s := newSeen()
	open(t, r, "gw", s)
	st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
	for _, values := range [][]string{{"x", "y"}, {response.StreamField, ""}, {response.StreamField, "\x09more"}} {
		if _, err := m.XAdd(st.reply, "*", values); err != nil {
			t.Fatal(err)
		}
	}
	st.must()
	s.until(t, "the event behind them", s.has("a", 1))
	if err := w.Append(st.reply, []byte("no event")); !errors.Is(err, response.ErrMalformed) {
		t.Errorf("Append of other bytes = %v, want ErrMalformed", err)
	}
}

func TestValidate(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"Addr":      func(c *Config) { c.Addr = "localhost" },
		"Shards":    func(c *Config) { c.Shards = 9 },
		"Alive":     func(c *Config) { c.Alive = c.Renew },
		"BufferAll": func(c *Config) { c.BufferAll = 1 },
		"Prefix":    func(c *Config) { c.Prefix = "" },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Validate with a bad %s = %v", field, err)
		}
	}
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Errorf("DefaultConfig: %v", err)
	}
}
