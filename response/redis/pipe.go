package redis

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/response"
)

const (
	// forgetAfter is how long a box without events is remembered, gone ones too.
	forgetAfter = 10 * time.Minute
	// boxesBeforeSweep is how many boxes are kept whatever their age.
	boxesBeforeSweep = 64
)

// buffered counts what waits in all pipes.
type buffered struct {
	bytes atomic.Int64
	limit int64
}

// pipe owns one connection: what is appended while a pipeline is under way goes with
// the next one, so an idle pipe adds no delay and a busy one makes large batches.
type pipe struct {
	cfg     *Config
	client  *goredis.Client
	log     *slog.Logger
	metrics *writerMetrics
	all     *buffered
	away    atomic.Bool   // the last pipeline failed
	wake    chan struct{} // size 1: something to send, or stopped

	mu       sync.Mutex // guards what follows
	boxes    map[string]*box
	ready    []*box // those with events, in turn
	attempts map[string]*attempt
	stopped  bool // takes no more
	ended    bool // sends no more
}

// box is a mailbox as its writers see it.
type box struct {
	reply, alive     string // keys of the stream and of its gateway's liveness
	queue            []item // not accepted; a batch under way is its beginning
	appended, passed uint64 // events; passed: accepted or dropped
	flushes          []flush
	inReady          bool
	used             time.Time // last append
	asked            time.Time // when liveness was last asked for
	absent           time.Time // since when it was seen missing; zero = it is there
	after            time.Time // not to be tried before
	gone             bool
}

type item struct {
	event []byte
	of    *attempt
	at    time.Time
}

// attempt bounds what one running request has waiting; it is here only while it has.
type attempt struct {
	origin string
	bytes  int
	since  time.Time // it waits and nothing of it was accepted
}

type flush struct {
	upTo uint64
	done chan error // size 1
}

func newPipe(cfg *Config, log *slog.Logger, m *writerMetrics, all *buffered) *pipe {
	return &pipe{
		cfg: cfg, client: cfg.dial(1), log: log, metrics: m, all: all, wake: make(chan struct{}, 1),
		boxes: map[string]*box{}, attempts: map[string]*attempt{},
	}
}

func (p *pipe) append(now time.Time, reply string, event []byte) error {
	origin := response.Origin(event)
	if origin == nil {
		return response.ErrMalformed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return ErrStopped
	}
	b := p.box(now, reply)
	if b.gone {
		return response.ErrGone
	}
	a := p.attempts[string(origin)]
	if err := p.bounds(now, a, len(event)); err != nil {
		return err
	}
	if a == nil {
		a = &attempt{origin: string(origin), since: now}
		p.attempts[a.origin] = a
	}
	a.bytes += len(event)
	p.all.bytes.Add(int64(len(event)))
	b.queue = append(b.queue, item{event: slices.Clone(event), of: a, at: now})
	b.appended++
	if !b.inReady {
		b.inReady = true
		p.ready = append(p.ready, b)
	}
	kick(p.wake)
	return nil
}

// bounds says whether one more event may wait. An event is never too large alone.
func (p *pipe) bounds(now time.Time, a *attempt, size int) error {
	waiting := p.all.bytes.Load()
	switch {
	case a != nil && now.Sub(a.since) > p.cfg.BufferFor:
		p.metrics.late.Inc()
	case a != nil && a.bytes+size > p.cfg.Buffer, waiting > 0 && waiting+int64(size) > p.all.limit:
		p.metrics.full.Inc()
	default:
		return nil
	}
	return ErrAway
}

func (p *pipe) box(now time.Time, reply string) *box {
	b := p.boxes[reply]
	if b == nil {
		if len(p.boxes) >= boxesBeforeSweep {
			for name, old := range p.boxes {
				if !old.inReady && now.Sub(old.used) > forgetAfter {
					delete(p.boxes, name)
				}
			}
		}
		b = &box{reply: reply, alive: response.IncarnationKey(reply)}
		p.boxes[reply] = b
	}
	b.used = now
	return b
}

func (p *pipe) flush(ctx context.Context, reply string) error {
	p.mu.Lock()
	b := p.boxes[reply]
	switch {
	case p.ended:
		p.mu.Unlock()
		return ErrStopped
	case b != nil && b.gone:
		p.mu.Unlock()
		return response.ErrGone
	case b == nil || b.passed == b.appended:
		p.mu.Unlock()
		return nil
	}
	f := flush{upTo: b.appended, done: make(chan error, 1)}
	b.flushes = append(b.flushes, f)
	p.mu.Unlock()
	select {
	case err := <-f.done:
		return err
	case <-ctx.Done():
		p.mu.Lock()
		b.flushes = slices.DeleteFunc(b.flushes, func(g flush) bool { return g.done == f.done })
		p.mu.Unlock()
		return ctx.Err()
	}
}

// run sends until ctx ends and then until nothing is left or Config.Drain has passed.
func (p *pipe) run(ctx context.Context) {
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.stopped = true
		p.mu.Unlock()
		time.AfterFunc(p.cfg.Drain, cut)
		kick(p.wake)
	})()
	wait := retryFrom
	for sending.Err() == nil {
		batch, next := p.take(time.Now())
		switch {
		case len(batch.parts) > 0:
			failed := p.send(sending, batch)
			p.settle(time.Now(), batch, failed)
			if failed == nil {
				wait = retryFrom
			} else {
				wait, _ = pause(sending, wait)
			}
		case ctx.Err() != nil && next < 0:
			cut()
		default:
			p.idle(sending, next)
		}
	}
	p.end()
}

// idle waits for work, at most d where d is 0 or more.
func (p *pipe) idle(ctx context.Context, d time.Duration) {
	var timer <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-p.wake:
	case <-timer:
	case <-ctx.Done():
	}
}

// batch is one pipeline: the beginning of the queues of some boxes.
type batch struct {
	parts  []part
	events int
	bytes  int
}

type part struct {
	b     *box
	items []item
	adds  []*goredis.StringCmd
	asked *goredis.IntCmd // whether the gateway lives; nil = not asked this time
}

// take makes the next batch and leaves the queues as they are. Where there is none,
// next is how long until a box may be tried again; -1: nothing waits.
func (p *pipe) take(now time.Time) (t batch, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = -1
	for range len(p.ready) {
		b := p.ready[0]
		if wait := b.after.Sub(now); wait > 0 {
			if next < 0 || wait < next {
				next = wait
			}
			p.ready = append(p.ready[1:], b)
			continue
		}
		n := 0
		for ; n < len(b.queue) && t.events < batchEvents; n++ {
			size := len(b.queue[n].event)
			if t.events > 0 && t.bytes+size > batchBytes {
				break
			}
			t.bytes += size
			t.events++
		}
		if n == 0 {
			break // full: it is first next time
		}
		p.ready = append(p.ready[1:], b)
		pt := part{b: b, items: b.queue[:n:n]}
		if b.alive != "" && (!b.absent.IsZero() || now.Sub(b.asked) >= p.cfg.Renew) {
			b.asked = now
			pt.asked = goredis.NewIntCmd(context.Background(), "exists", b.alive)
		}
		t.parts = append(t.parts, pt)
	}
	return t, next
}

// send returns nil when Redis has answered for every event. Otherwise some may have
// been accepted; the same ones are sent again, in the same order, so that the first
// of each comes in order whatever the network still holds of the earlier try.
func (p *pipe) send(ctx context.Context, t batch) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout+time.Duration(t.bytes)*time.Second/slowest)
	defer cancel()
	pipeline := p.client.Pipeline()
	if t.events > 1 {
		// All or nothing: an event that is refused (no memory, no stream yet) must
		// not be overtaken by the next.
		pipeline = p.client.TxPipeline()
	}
	maxLen := strconv.FormatInt(p.cfg.MaxLen, 10)
	var cmds []goredis.Cmder
	for i := range t.parts {
		pt := &t.parts[i]
		if pt.asked != nil {
			cmds = append(cmds, pt.asked)
		}
		pt.adds = make([]*goredis.StringCmd, len(pt.items))
		for j := range pt.items {
			pt.adds[j] = goredis.NewStringCmd(ctx, "xadd", pt.b.reply, "nomkstream", "maxlen", "~", maxLen, "*", response.StreamField, pt.items[j].event)
			cmds = append(cmds, pt.adds[j])
		}
	}
	if err := pipeline.BatchProcess(ctx, cmds...); err != nil {
		return err
	}
	_, err := pipeline.Exec(ctx)
	if err != nil && !absent(err) {
		return err
	}
	for _, c := range cmds {
		if err := c.Err(); err != nil && !absent(err) {
			return err
		}
	}
	return nil
}

// absent reports whether an answer means that the mailbox is not there.
func absent(err error) bool {
	return err == goredis.Nil || refused(err, "WRONGTYPE") //nolint:errorlint // never wrapped
}

// settle does the accounts of a batch that was sent.
func (p *pipe) settle(now time.Time, t batch, failed error) {
	if was := p.away.Swap(failed != nil); was != (failed != nil) {
		if failed != nil {
			p.log.Warn("redis is away, events wait", "error", failed)
		} else {
			p.log.Info("redis is back, events go on")
		}
	}
	if failed != nil {
		p.metrics.repeated.Inc()
		return
	}
	p.metrics.sent.Inc()
	p.metrics.size.Observe(float64(t.events))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range t.parts {
		p.settlePart(now, &t.parts[i])
	}
	p.ready = slices.DeleteFunc(p.ready, func(b *box) bool {
		b.inReady = len(b.queue) > 0
		return !b.inReady
	})
}

func (p *pipe) settlePart(now time.Time, pt *part) {
	b := pt.b
	refused := pt.adds[0].Err() != nil // then so were all of one stream
	if !refused {
		for i := range pt.items {
			p.metrics.accepted.Observe(now.Sub(pt.items[i].at).Seconds())
		}
		p.pass(now, b, len(pt.items), nil)
	}
	switch missing := refused || pt.asked != nil && pt.asked.Val() == 0; {
	case !missing && pt.asked != nil:
		b.absent = time.Time{}
	case missing && b.absent.IsZero():
		b.absent = now
	case missing && now.Sub(b.absent) >= p.cfg.GoneAfter:
		p.log.Info("mailbox is gone", "mailbox", b.reply)
		p.metrics.gone.Add(float64(len(b.queue)))
		b.gone = true
		p.pass(now, b, len(b.queue), response.ErrGone)
	}
	if refused {
		b.after = now.Add(p.cfg.GoneAfter / 16)
	}
}

// pass takes the first n events off a box; why is what their flushes are told.
func (p *pipe) pass(now time.Time, b *box, n int, why error) {
	for i := range b.queue[:n] {
		size, a := len(b.queue[i].event), b.queue[i].of
		p.all.bytes.Add(int64(-size))
		a.since = now
		if a.bytes -= size; a.bytes == 0 {
			delete(p.attempts, a.origin)
		}
	}
	clear(b.queue[:n])
	b.queue = b.queue[n:]
	b.passed += uint64(n)
	b.flushes = slices.DeleteFunc(b.flushes, func(f flush) bool {
		if f.upTo <= b.passed {
			f.done <- why
			return true
		}
		return false
	})
}

// end drops what could not be sent.
func (p *pipe) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.ready {
		p.metrics.left.Add(float64(len(b.queue)))
		p.pass(time.Now(), b, len(b.queue), ErrStopped)
	}
	p.ready, p.ended = nil, true
	_ = p.client.Close()
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
