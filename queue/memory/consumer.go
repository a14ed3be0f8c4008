package memory

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// Consumer takes messages for one engine. It is safe for concurrent use.
type Consumer struct {
	queue    *Queue
	node     string
	handlers sync.WaitGroup

	// Guarded by queue.mu.
	match   func(lane.Key) bool
	serve   func(*item) // nil before Run and after its ctx ended
	order   uint64      // place in the rotation, from 1; 0 before Run
	running int         // handlers
	parked  list.List   // of *line that wait for a slot here, longest first
}

// Consumer returns a consumer that accepts nothing yet. node is for error texts.
func (q *Queue) Consumer(node string) *Consumer {
	return &Consumer{queue: q, node: node}
}

// Accept sets which lanes the consumer takes, nil for none. Running handlers are
// left alone, so Accept(nil) begins a drain. match is called with the queue
// locked, once per lane and whenever a lane begins: it must be quick, give the
// same answer for the same key until the next Accept, and not call the queue.
func (c *Consumer) Accept(match func(lane.Key) bool) {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	c.match = match
	if c.serve != nil {
		q.rematch(c)
	}
}

func (c *Consumer) accepts(key lane.Key) bool {
	return c.serve != nil && c.match != nil && c.match(key)
}

// Run delivers to h, each delivery in a goroutine of its own, until ctx ends; then
// it ends the handlers' context, waits for all of them and returns nil. A Consumer
// runs once; a second Run is an error. A handler's panic is not recovered.
func (c *Consumer) Run(ctx context.Context, h queue.Handler) error {
	hard, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if !c.enter(hard, h) {
		return fmt.Errorf("queue: consumer %s has run already; take a new one", c.node)
	}
	<-ctx.Done()
	c.leave() // before stop, so that what handlers give back does not come here again
	stop()
	c.handlers.Wait()
	return nil
}

func (c *Consumer) enter(ctx context.Context, h queue.Handler) bool {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.order > 0 {
		return false
	}
	c.serve = func(it *item) {
		defer c.handlers.Done()
		q.settle(c, it, h(ctx, it.message, func() { q.started(it) }))
	}
	q.order++
	c.order = q.order
	q.consumers = append(q.consumers, c)
	q.rematch(c)
	return true
}

func (c *Consumer) leave() {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	c.serve = nil
	q.consumers = slices.DeleteFunc(q.consumers, func(other *Consumer) bool { return other == c })
	q.rematch(c)
}

// rematch asks c about every lane again, those with the oldest head first.
func (q *Queue) rematch(c *Consumer) {
	oldest := func(l *line) uint64 {
		if len(l.waiting) == 0 {
			return math.MaxUint64
		}
		return l.waiting[0].seq
	}
	byAge := func(a, b *line) int { return cmp.Compare(oldest(a), oldest(b)) }
	for _, l := range slices.SortedFunc(maps.Values(q.lines), byAge) {
		l.unpark()
		l.take(c, c.accepts(l.key))
		q.place(l)
	}
}

// deliver hands the line's head to c.
func (q *Queue) deliver(l *line, c *Consumer) {
	it := l.pop()
	l.deciding = it
	l.last, q.last = c.order, c.order
	c.running++
	c.handlers.Add(1)
	go c.serve(it)
}

// started lets the lane go on while it still runs.
func (q *Queue) started(it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.line.deciding == it {
		it.line.deciding = nil
		q.place(it.line)
	}
}

// settle takes a handler's answer and gives its slot to the line that waits
// longest for one.
func (q *Queue) settle(c *Consumer, it *item, r queue.Result) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := it.line
	if l.deciding == it {
		l.deciding = nil
	}
	if after, again := r.After(); again {
		it.due = time.Now().Add(after)
		l.push(it)
	} else {
		q.forget(it)
	}
	c.running--
	if longest := c.parked.Front(); longest != nil {
		q.place(longest.Value.(*line))
	}
	q.place(l)
}
