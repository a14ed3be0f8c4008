package redis

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"penstock/redisconn/redisconntest"
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

// TestAwayIsTriedSeldom: a Redis that is away is tried about once a second by a
// gateway, and as often by an agent, however many mailboxes there are.
func TestAwayIsTriedSeldom(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, Config){
		"gateway": func(t *testing.T, c Config) {
			r := newReader(t, c)
			r.link.Every = 0
			background(t, r.Run)
			open(t, r, "one", newSeen())
			open(t, r, "two", newSeen())
		},
		"agent": func(t *testing.T, c Config) {
			w := newWriter(t, c)
			w.link.Every = 0
			background(t, w.Run)
			for i := range 20 {
				reply := response.Mailbox(c.Prefix, fmt.Sprintf("gw%d", i), 0)
				(&stream{t: t, w: w, reply: reply, id: "a"}).must()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, tried := redisconntest.Away(t)
			begin(t, quick(addr, "test"))
			const watched = 1500 * time.Millisecond
			<-time.After(watched)
			// Until the first has failed each connection may be tried.
			if n, most := tried.Load(), int64(DefaultConfig().Connections+2); n < 2 || n > most {
				t.Errorf("%d connections in %v, want 2 to %d", n, watched, most)
			}
		})
	}
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
