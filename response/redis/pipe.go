package redis

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/redisconn"
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
	link    *redisconn.Link
	client  *redisconn.Client
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

func newPipe(cfg *Config, link *redisconn.Link, log *slog.Logger, m *writerMetrics, all *buffered) *pipe {
	return &pipe{
		cfg: cfg, link: link, client: cfg.dial(link, 1), log: log, metrics: m, all: all, wake: make(chan struct{}, 1),
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
				wait, _ = pause(sending, p.link, wait)
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

// end drops what could not be sent.
func (p *pipe) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.ready {
		p.metrics.left.Add(float64(len(b.queue)))
		p.pass(time.Now(), b, len(b.queue), ErrStopped)
	}
	p.ready, p.stopped, p.ended = nil, true, true
	_ = p.client.Close()
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
