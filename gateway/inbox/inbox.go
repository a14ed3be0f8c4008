// Package inbox is where the events of requests meet the clients that wait for them: one
// attempt of each is relayed, in order, without a hole, and a client that does not read
// is cut off. Safe for concurrent use.
package inbox

import (
	"strings"
	"sync"
	"time"

	"penstock/registry"
	"penstock/response"
)

// Inbox is of one request. Writers call Push, which never blocks; the request's own
// goroutine calls Take.
type Inbox struct {
	stream bool
	limit  int           // bytes that may wait for a slow client
	signal chan struct{} // size 1: something is there to take

	mu     sync.Mutex // guards what follows
	heard  []progress // attempts heard of, at most registry.MaxTries and one
	bound  string     // the attempt whose bytes the client gets; "" until its first byte
	ready  Batch
	over   bool   // the end is known: nothing that comes later counts
	cut    bool   // the client was cut off for not reading
	unhang func() // makes a write that hangs return; nil once the handler is done
}

// progress is how far one attempt's events have come.
type progress struct {
	attempt string
	seq     uint64
}

// Batch is what has come since the last Take.
type Batch struct {
	Buf    []byte // bytes for a stream's client
	Chunks int    // events with bytes in Buf
	Alive  bool   // any event at all came: a start was seen
	First  bool   // the meta fields below are set
	Node   string
	Tries  int
	Queued time.Duration
	Fate   Fate
	End    response.Event // Ended only; Payload of a failure or of a plain answer
}

// Fate says whether and how the events ended.
type Fate uint8

// The fates.
const (
	Open  Fate = iota
	Ended      // End holds the terminal event
	Lost       // a hole: events went missing
	Slow       // the client does not read
)

// buffers are the streams' byte buffers, two a request.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keepBuffer is the largest buffer worth keeping for the next request.
const keepBuffer = 64 << 10

// GetBuffer is an empty buffer for Take.
func GetBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

// PutBuffer gives one back.
func PutBuffer(b []byte) {
	if c := cap(b); c > 0 && c <= keepBuffer {
		buffers.Put(&b)
	}
}

// New makes the inbox of one request. unhang is called, once or more, to
// make a write to the client return that hangs; never after Close.
func New(stream bool, limit int, unhang func()) *Inbox {
	return &Inbox{stream: stream, limit: limit, signal: make(chan struct{}, 1), ready: Batch{Buf: GetBuffer()}, unhang: unhang}
}

// Push takes one event and copies what it keeps.
func (w *Inbox) Push(e *response.Event) {
	w.mu.Lock()
	changed := !w.over && w.accept(e)
	if w.ready.Fate != Open {
		w.over = true
	}
	if changed && w.ready.Fate == Slow {
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
func (w *Inbox) accept(e *response.Event) bool {
	foreign := w.bound != "" && e.Attempt != w.bound
	if e.Kind.Terminal() && (foreign || e.Kind != response.Done) {
		// A terminal event was let through by the record, once: whatever was
		// relayed, this request is over. Who ended a dead attempt's request
		// cannot know its numbering.
		w.ready.Alive = true
		if e.Kind == response.Done {
			w.ready.Fate = Lost // another attempt's whole answer cannot follow our half
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
		w.ready.Alive, w.ready.Fate = true, Lost
		return true
	case e.Seq <= at.seq:
		return false
	}
	at.seq = e.Seq
	w.ready.Alive = true
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
	if have := len(w.ready.Buf); have > 0 && have+len(e.Payload) > w.limit {
		w.ready.Fate = Slow
		return true
	}
	w.ready.Buf = append(w.ready.Buf, e.Payload...)
	w.ready.Chunks++
	return true
}

// progress finds or makes the entry of an attempt; nil where there were more
// attempts than a record allows.
func (w *Inbox) progress(attempt string) *progress {
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

func (w *Inbox) meta(e *response.Event) {
	w.ready.First = true
	w.ready.Node, w.ready.Tries, w.ready.Queued = strings.Clone(e.Node), e.Tries, e.Queued
}

func (w *Inbox) finish(e *response.Event) {
	if e.Node != "" { // the record store ends requests too, and does not know who ran them
		w.meta(e)
	}
	w.ready.Fate = Ended
	w.ready.End = *e
	w.ready.End.ID, w.ready.End.Attempt, w.ready.End.Node = "", "", ""
	if w.stream && e.Kind == response.Done {
		w.ready.Buf = append(w.ready.Buf, e.Payload...)
		w.ready.End.Payload = nil
		return
	}
	w.ready.End.Payload = append([]byte(nil), e.Payload...)
}

// Signal is readable when there is something to take.
func (w *Inbox) Signal() <-chan struct{} { return w.signal }

// Take hands over what has come; buf is an empty buffer to fill next.
func (w *Inbox) Take(buf []byte) Batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.ready
	w.ready = Batch{Buf: buf}
	return b
}

// TimedOut is called when one write to the client takes too long.
func (w *Inbox) TimedOut() {
	w.mu.Lock()
	w.cutOff()
	w.mu.Unlock()
}

// cutOff makes a write that hangs return. The caller holds mu.
func (w *Inbox) cutOff() {
	w.cut = true
	if w.unhang != nil {
		w.unhang()
	}
}

// WasCut reports whether the client was cut off for not reading.
func (w *Inbox) WasCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

// Close ends the inbox: what still comes is dropped, and unhang never runs again.
func (w *Inbox) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over, w.unhang = true, nil
	PutBuffer(w.ready.Buf)
	w.ready.Buf = nil
}

// All finds the inbox of an id. Sharded, so that writers of many requests do
// not meet at one lock.
type All struct {
	shards [64]struct {
		mu sync.Mutex
		m  map[string]*Inbox // guarded by mu
	}
}

// NewAll makes an empty one.
func NewAll() *All {
	ws := &All{}
	for i := range ws.shards {
		ws.shards[i].m = map[string]*Inbox{}
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

// Put lets the events of id come to w.
func (ws *All) Put(id string, w *Inbox) {
	s := &ws.shards[shard(id)]
	s.mu.Lock()
	s.m[id] = w
	s.mu.Unlock()
}

// Remove drops what still comes for id.
func (ws *All) Remove(id string) {
	s := &ws.shards[shard(id)]
	s.mu.Lock()
	delete(s.m, id)
	s.mu.Unlock()
}

// Handle is the mailbox's reader: it routes e to whoever waits, or drops it.
func (ws *All) Handle(e response.Event) {
	s := &ws.shards[shard(e.ID)]
	s.mu.Lock()
	w := s.m[e.ID]
	s.mu.Unlock()
	if w != nil {
		w.Push(&e)
	}
}

// Counts are inboxes by how far their requests are, as heard here.
type Counts struct {
	Queued, Running, Streaming int
	Plain                      int // of queued and running, those that do not stream
}

// Count counts them all.
func (ws *All) Count() (n Counts) {
	for i := range ws.shards {
		s := &ws.shards[i]
		s.mu.Lock()
		for _, w := range s.m {
			w.count(&n)
		}
		s.mu.Unlock()
	}
	return n
}

func (w *Inbox) count(n *Counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.bound != "":
		n.Streaming++
	case len(w.heard) > 0:
		n.Running++
	default:
		n.Queued++
	}
	if !w.stream && w.bound == "" {
		n.Plain++
	}
}
