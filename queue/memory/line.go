package memory

import (
	"cmp"
	"container/heap"
	"container/list"
	"slices"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// item is a message from Publish until it is settled.
type item struct {
	message *queue.Message
	line    *line
	seq     uint64    // order of publishing: its place in the lane for good
	size    int64     // body and Overhead
	due     time.Time // suspended until; zero before the first Suspend
	index   int       // in line.waiting, -1 while a handler has it
}

func (it *item) waits() bool { return it.index >= 0 }

// line is a lane's state. It exists while the lane holds messages and is always in
// one place: a handler decides about its head, its head sleeps, it is parked with
// its takers because all of them are busy (or it has none), or nothing waits in it.
type line struct {
	key      lane.Key
	held     int // messages not settled
	bytes    int64
	waiting  fifo
	deciding *item   // delivered, neither started nor settled
	takers   []taker // consumers that accept the lane, by order
	last     uint64  // order of the consumer that got the last delivery
	due      time.Time
	index    int // in Queue.asleep, -1 while not there
}

// taker is a consumer that accepts the line, and the line's place among those
// that wait for that consumer; nil while the line is not parked.
type taker struct {
	consumer *Consumer
	parked   *list.Element
}

// newLine begins a lane that held nothing. Its rotation goes on where the queue's
// last delivery was: lanes of one message each still spread over the consumers.
func (q *Queue) newLine(key lane.Key) *line {
	l := &line{key: key, index: -1, last: q.last}
	for _, c := range q.consumers {
		if c.accepts(key) {
			l.takers = append(l.takers, taker{consumer: c})
		}
	}
	q.lines[key] = l
	return l
}

// place puts the line where its state says, delivering its head if it is ready
// and a taker is free. Every change of a line ends here.
func (q *Queue) place(l *line) {
	l.unpark()
	q.wake(l)
	switch {
	case l.held == 0:
		delete(q.lines, l.key)
	case l.deciding != nil || len(l.waiting) == 0:
	case time.Until(l.waiting[0].due) > 0:
		q.sleep(l)
	default:
		if c := l.next(); c != nil {
			q.deliver(l, c)
		} else {
			l.park()
		}
	}
}

// next is the taker with a free slot that follows the last one in rotation.
func (l *line) next() *Consumer {
	var wrapped *Consumer
	for _, t := range l.takers {
		c := t.consumer
		if c.running >= c.queue.cfg.Concurrency {
			continue
		}
		if c.order > l.last {
			return c
		}
		if wrapped == nil {
			wrapped = c
		}
	}
	return wrapped
}

// take adds or removes c as a taker of an unparked line.
func (l *line) take(c *Consumer, accepted bool) {
	l.takers = slices.DeleteFunc(l.takers, func(t taker) bool { return t.consumer == c })
	if accepted {
		at, _ := slices.BinarySearchFunc(l.takers, c.order, func(t taker, order uint64) int {
			return cmp.Compare(t.consumer.order, order)
		})
		l.takers = slices.Insert(l.takers, at, taker{consumer: c})
	}
}

// park queues the line with every taker: the first one that has a slot again
// takes the line that waits longest.
func (l *line) park() {
	for i, t := range l.takers {
		l.takers[i].parked = t.consumer.parked.PushBack(l)
	}
}

func (l *line) unpark() {
	for i, t := range l.takers {
		if t.parked != nil {
			t.consumer.parked.Remove(t.parked)
			l.takers[i].parked = nil
		}
	}
}

// sleep waits for the line's head to be due.
func (q *Queue) sleep(l *line) {
	l.due = l.waiting[0].due
	heap.Push(&q.asleep, l)
	q.arm()
}

func (q *Queue) wake(l *line) {
	if l.index >= 0 {
		heap.Remove(&q.asleep, l.index)
	}
}

// arm sets the alarm for the line that is due first. An alarm that is set too
// early, its line gone, rings once in vain.
func (q *Queue) arm() {
	if len(q.asleep) == 0 || !q.alarmAt.IsZero() && !q.asleep[0].due.Before(q.alarmAt) {
		return
	}
	q.alarmAt = q.asleep[0].due
	if q.alarm == nil {
		q.alarm = time.AfterFunc(time.Until(q.alarmAt), q.ring)
		return
	}
	q.alarm.Reset(time.Until(q.alarmAt))
}

// ring places every line whose head is due.
func (q *Queue) ring() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alarmAt = time.Time{}
	for now := time.Now(); len(q.asleep) > 0 && !q.asleep[0].due.After(now); {
		q.place(q.asleep[0])
	}
	q.arm()
}

func (l *line) push(it *item)   { heap.Push(&l.waiting, it) }
func (l *line) pop() *item      { return heap.Pop(&l.waiting).(*item) }
func (l *line) remove(it *item) { heap.Remove(&l.waiting, it.index) }

// fifo is a heap by order of publishing: new messages stay at the end at no cost,
// and one that comes back finds its place again even after later ones were started.
type fifo []*item

func (f fifo) Len() int           { return len(f) }
func (f fifo) Less(i, j int) bool { return f[i].seq < f[j].seq }
func (f fifo) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].index, f[j].index = i, j
}

func (f *fifo) Push(x any) {
	it := x.(*item)
	it.index = len(*f)
	*f = append(*f, it)
}

func (f *fifo) Pop() any {
	last := len(*f) - 1
	it := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	it.index = -1
	return it
}

// sleepers is a heap of lines by when their head is due.
type sleepers []*line

func (s sleepers) Len() int           { return len(s) }
func (s sleepers) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s sleepers) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *sleepers) Push(x any) {
	l := x.(*line)
	l.index = len(*s)
	*s = append(*s, l)
}

func (s *sleepers) Pop() any {
	last := len(*s) - 1
	l := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	l.index = -1
	return l
}
