package gateway

import (
	"strings"
	"sync"
	"time"

	"penstock/registry"
	"penstock/response"
)

// waiter is where the events of one request meet the client that waits for them.
// Writers call push, which never blocks; the request's own goroutine calls take.
type waiter struct {
	stream bool
	limit  int           // bytes that may wait for a slow client
	signal chan struct{} // size 1: something is there to take

	mu     sync.Mutex // guards what follows
	heard  []progress // attempts heard of, at most registry.MaxTries and one
	bound  string     // the attempt whose bytes the client gets; "" until its first byte
	ready  batch
	over   bool   // the end is known: nothing that comes later counts
	cut    bool   // the client was cut off for not reading
	unhang func() // makes a write that hangs return; nil once the handler is done
}

// progress is how far one attempt's events have come.
type progress struct {
	attempt string
	seq     uint64
}

// batch is what has come since the last take.
type batch struct {
	buf    []byte // bytes for a stream's client
	chunks int    // events with bytes in buf
	alive  bool   // any event at all came: a start was seen
	first  bool   // the meta fields below are set
	node   string
	tries  int
	queued time.Duration
	fate   fate
	end    response.Event // ended only; Payload of a failure or of a plain answer
}

// fate says whether and how the events ended.
type fate uint8

const (
	open  fate = iota
	ended      // end holds the terminal event
	lost       // a hole: events went missing
	slow       // the client does not read
)

// buffers are the streams' byte buffers, two a request.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keepBuffer is the largest buffer worth keeping for the next request.
const keepBuffer = 64 << 10

func getBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

func putBuffer(b []byte) {
	if c := cap(b); c > 0 && c <= keepBuffer {
		buffers.Put(&b)
	}
}

// newWaiter makes the waiter of one request. unhang is called, once or more, to
// make a write to the client return that hangs; never after close.
func newWaiter(stream bool, limit int, unhang func()) *waiter {
	return &waiter{stream: stream, limit: limit, signal: make(chan struct{}, 1), ready: batch{buf: getBuffer()}, unhang: unhang}
}

// push takes one event and copies what it keeps.
func (w *waiter) push(e *response.Event) {
	w.mu.Lock()
	changed := !w.over && w.accept(e)
	if w.ready.fate != open {
		w.over = true
	}
	if changed && w.ready.fate == slow {
		w.cutOff()
	}
	w.mu.Unlock()
	if changed {
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

// accept applies the rules of the last arbiter: one attempt is relayed, in order,
// without a hole; duplicates are dropped. It reports whether anything changed.
func (w *waiter) accept(e *response.Event) bool {
	foreign := w.bound != "" && e.Attempt != w.bound
	if e.Kind.Terminal() && (foreign || e.Kind != response.Done) {
		// A terminal event was let through by the record, once: whatever was
		// relayed, this request is over. Who ended a dead attempt's request
		// cannot know its numbering.
		w.ready.alive = true
		if e.Kind == response.Done {
			w.ready.fate = lost // another attempt's whole answer cannot follow our half
		} else {
			w.finish(e)
		}
		return true
	}
	if foreign {
		return false
	}
	at := w.progress(e.Attempt)
	switch {
	case at == nil || e.Seq > at.seq+1:
		w.ready.alive, w.ready.fate = true, lost
		return true
	case e.Seq <= at.seq:
		return false
	}
	at.seq = e.Seq
	w.ready.alive = true
	if e.Kind == response.Heartbeat {
		return true
	}
	if w.bound == "" {
		w.bound = at.attempt
	}
	if e.Kind == response.Done {
		w.finish(e)
		return true
	}
	if e.Kind == response.First {
		w.meta(e)
	}
	if have := len(w.ready.buf); have > 0 && have+len(e.Payload) > w.limit {
		w.ready.fate = slow
		return true
	}
	w.ready.buf = append(w.ready.buf, e.Payload...)
	w.ready.chunks++
	return true
}

// progress finds or makes the entry of an attempt; nil where there were more
// attempts than a record allows.
func (w *waiter) progress(attempt string) *progress {
	for i := range w.heard {
		if w.heard[i].attempt == attempt {
			return &w.heard[i]
		}
	}
	if len(w.heard) > registry.MaxTries+1 {
		return nil
	}
	w.heard = append(w.heard, progress{attempt: strings.Clone(attempt)})
	return &w.heard[len(w.heard)-1]
}

func (w *waiter) meta(e *response.Event) {
	w.ready.first = true
	w.ready.node, w.ready.tries, w.ready.queued = strings.Clone(e.Node), e.Tries, e.Queued
}

func (w *waiter) finish(e *response.Event) {
	if e.Node != "" { // the record store ends requests too, and does not know who ran them
		w.meta(e)
	}
	w.ready.fate = ended
	w.ready.end = *e
	w.ready.end.ID, w.ready.end.Attempt, w.ready.end.Node = "", "", ""
	if w.stream && e.Kind == response.Done {
		w.ready.buf = append(w.ready.buf, e.Payload...)
		w.ready.end.Payload = nil
		return
	}
	w.ready.end.Payload = append([]byte(nil), e.Payload...)
}

// take hands over what has come; buf is an empty buffer to fill next.
func (w *waiter) take(buf []byte) batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.ready
	w.ready = batch{buf: buf}
	return b
}

// timedOut is called when one write to the client takes too long.
func (w *waiter) timedOut() {
	w.mu.Lock()
	w.cutOff()
	w.mu.Unlock()
}

// cutOff makes a write that hangs return. The caller holds mu.
func (w *waiter) cutOff() {
	w.cut = true
	if w.unhang != nil {
		w.unhang()
	}
}

// wasCut reports whether the client was cut off for not reading.
func (w *waiter) wasCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

// close ends the waiter: what still comes is dropped, and unhang never runs again.
func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over, w.unhang = true, nil
	putBuffer(w.ready.buf)
	w.ready.buf = nil
}

// waiters finds the waiter of an id. Sharded, so that writers of many requests do
// not meet at one lock.
type waiters struct {
	shards [64]struct {
		mu sync.Mutex
		m  map[string]*waiter // guarded by mu
	}
}

func newWaiters() *waiters {
	ws := &waiters{}
	for i := range ws.shards {
		ws.shards[i].m = map[string]*waiter{}
	}
	return ws
}

// shard of an id: its first two hex digits are random.
func shard(id string) int {
	if len(id) < 2 {
		return 0
	}
	return int(id[0]+16*id[1]) % 64
}

func (ws *waiters) put(id string, w *waiter) {
	s := &ws.shards[shard(id)]
	s.mu.Lock()
	s.m[id] = w
	s.mu.Unlock()
}

func (ws *waiters) remove(id string) {
	s := &ws.shards[shard(id)]
	s.mu.Lock()
	delete(s.m, id)
	s.mu.Unlock()
}

// handle is the mailbox's reader: it routes e to whoever waits, or drops it.
func (ws *waiters) handle(e response.Event) {
	s := &ws.shards[shard(e.ID)]
	s.mu.Lock()
	w := s.m[e.ID]
	s.mu.Unlock()
	if w != nil {
		w.push(&e)
	}
}
