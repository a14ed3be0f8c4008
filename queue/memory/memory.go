// Package memory keeps the lanes of a standalone penstock in its own process.
// What waits here waits on an open client connection, so nothing needs to
// outlive the process; everything is bounded instead.
//
// A message costs its body plus Overhead until it is settled. A lane without
// messages is forgotten. Nothing scans: a lane is looked at when one of its
// messages is published, started, settled or discarded, when its suspended head
// is due (one timer serves all lanes), and when a consumer comes, goes or changes
// what it accepts.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// Overhead is what a message counts beside its body, in bytes: its fields, its
// place in the lane and its share of the maps. It makes TotalBytes bound a flood
// of empty bodies too.
const Overhead = 1 << 10

// Config bounds a Queue. All bounds count messages from Publish until they are
// settled, running ones included.
type Config struct {
	LaneRequests int   // messages of one lane
	LaneBytes    int64 // bodies and Overhead of one lane, in bytes
	TotalBytes   int64 // bodies and Overhead of all lanes, in bytes
	Concurrency  int   // handlers of one consumer at a time, started ones included
}

// DefaultConfig is 10,000 requests and 256 MiB per lane, 1 GiB in all, and 4,096
// handlers per consumer: sixteen times what one engine runs at vLLM's default of
// 256 sequences, so that heads to choose from are never short.
func DefaultConfig() Config {
	return Config{LaneRequests: 10_000, LaneBytes: 256 << 20, TotalBytes: 1 << 30, Concurrency: 4096}
}

// Validate names the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.LaneRequests < 1:
		return fmt.Errorf("queue: LaneRequests is %d; set it to 1 or more", c.LaneRequests)
	case c.LaneBytes < Overhead:
		return fmt.Errorf("queue: LaneBytes is %d; set it to %d or more, the cost of one empty message", c.LaneBytes, Overhead)
	case c.TotalBytes < c.LaneBytes:
		return fmt.Errorf("queue: TotalBytes is %d, below LaneBytes %d; raise it or lower LaneBytes", c.TotalBytes, c.LaneBytes)
	case c.Concurrency < 1:
		return fmt.Errorf("queue: Concurrency is %d; set it to 1 or more", c.Concurrency)
	}
	return nil
}

// Queue holds all lanes of the process. It is safe for concurrent use and owns no
// goroutine: handlers run in goroutines that their consumer's Run waits for.
type Queue struct {
	cfg Config

	mu        sync.Mutex // guards all below, and every line, item and Consumer of this queue
	closed    bool
	seq       uint64 // of the last message published
	bytes     int64
	items     map[string]*item // by message id, until settled
	lines     map[lane.Key]*line
	consumers []*Consumer // that run, by order
	order     uint64      // of the last consumer that began to run
	last      uint64      // order of the consumer that got the last delivery
	asleep    sleepers    // lines whose head is suspended
	alarm     *time.Timer // rings for asleep[0]; nil until the first Suspend
	alarmAt   time.Time   // zero: not set
}

// New returns an empty queue.
func New(cfg Config) (*Queue, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Queue{cfg: cfg, items: map[string]*item{}, lines: map[lane.Key]*line{}}, nil
}

// Publish puts m at the end of its lane. It never blocks. It returns
// queue.ErrFull where a bound would be passed, queue.ErrClosed after Close, ctx's
// error where that has ended already, and an error for an id that is missing or
// that the queue holds.
func (q *Queue) Publish(ctx context.Context, m *queue.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.ID == "" {
		return errors.New("queue: message without an id")
	}
	size := int64(len(m.Body)) + Overhead

	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return queue.ErrClosed
	}
	if _, held := q.items[m.ID]; held {
		return fmt.Errorf("queue: message %s is queued already", m.ID)
	}
	l := q.lines[m.Lane]
	if err := q.bound(l, size); err != nil {
		return fmt.Errorf("lane %s: %w", m.Lane, err)
	}
	if l == nil {
		l = q.newLine(m.Lane)
	}
	q.seq++
	it := &item{message: m, line: l, seq: q.seq, size: size}
	q.items[m.ID] = it
	q.bytes += size
	l.bytes += size
	l.held++
	l.push(it)
	if len(l.waiting) == 1 { // otherwise another head decides what the line does
		q.place(l)
	}
	return nil
}

// bound says whether size more bytes fit; l is nil for a new lane.
func (q *Queue) bound(l *line, size int64) error {
	var held int
	var bytes int64
	if l != nil {
		held, bytes = l.held, l.bytes
	}
	switch {
	case held >= q.cfg.LaneRequests:
		return fmt.Errorf("%w: %d requests", queue.ErrFull, held)
	case bytes+size > q.cfg.LaneBytes:
		return fmt.Errorf("%w: %d bytes and %d more", queue.ErrFull, bytes, size)
	case q.bytes+size > q.cfg.TotalBytes:
		return fmt.Errorf("%w: %d bytes in all lanes and %d more", queue.ErrFull, q.bytes, size)
	}
	return nil
}

// Discard removes a message that waits or is suspended and reports whether it
// did; one that a handler has is left to that handler. The gateway calls it when
// a client went away, so that the bytes are free at once. Its cost is the
// logarithm of the lane's length.
func (q *Queue) Discard(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[id]
	if it == nil || !it.waits() {
		return false
	}
	it.line.remove(it)
	q.forget(it)
	q.place(it.line)
	return true
}

// Close makes every later Publish fail. What is queued is still delivered while
// consumers run.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// Len says what the queue holds: lanes with messages, messages not settled yet
// (running ones included), and their bytes.
func (q *Queue) Len() (lanes, messages int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines), len(q.items), q.bytes
}

// forget drops a settled message; its line is placed by the caller.
func (q *Queue) forget(it *item) {
	delete(q.items, it.message.ID)
	q.bytes -= it.size
	it.line.bytes -= it.size
	it.line.held--
}
