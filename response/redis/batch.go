package redis

import (
	"context"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/response"
)

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
