package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/redisconn"
	"penstock/response"
)

// mailbox is one open mailbox of a gateway: a stream per shard, each read by one
// goroutine, and one more that keeps them alive and trimmed.
type mailbox struct {
	r           *Reader
	incarnation string
	alive       string // key
	handle      func(response.Event)
	shards      []shard
	reads       *redisconn.Client // one connection per shard; closing it ends reads that block
	calls       *redisconn.Client // one connection for all else
	trim        chan struct{}     // size 1: a stream is full of dispatched events
	cancel      context.CancelFunc
	canceled    context.Context
	done        chan struct{} // closed when run has returned

	opened, started bool // guarded by r.mu
}

// shard is one stream.
type shard struct {
	key      string
	last     atomic.Pointer[string] // id of the last entry that was dispatched
	trimmed  string                 // last at the last trim; the keeper's
	since    int                    // events since the reader asked for a trim; the reader's
	attached atomic.Bool            // the stream is there and the last read was answered
	tried    atomic.Bool            // it was attached or could not be
}

func newMailbox(r *Reader, incarnation string, handle func(response.Event)) *mailbox {
	b := &mailbox{
		r: r, incarnation: incarnation, handle: handle, shards: make([]shard, r.cfg.Shards),
		reads: r.cfg.dial(&r.link, r.cfg.Shards), calls: r.cfg.dial(&r.link, 1), trim: make(chan struct{}, 1), done: make(chan struct{}),
	}
	b.canceled, b.cancel = context.WithCancel(context.Background())
	start := "0-0"
	for i := range b.shards {
		b.shards[i].key = response.Mailbox(r.cfg.Prefix, incarnation, i)
		b.shards[i].last.Store(&start)
		b.shards[i].trimmed = start
	}
	b.alive = response.IncarnationKey(b.shards[0].key)
	return b
}

// run reads until ctx ends or the mailbox is closed, then deletes it.
func (b *mailbox) run(ctx context.Context) {
	defer close(b.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.canceled, cancel)()
	defer context.AfterFunc(ctx, func() { _ = b.reads.Close() })()
	var all sync.WaitGroup
	for i := range b.shards {
		all.Go(func() { b.read(ctx, &b.shards[i]) })
	}
	all.Go(func() { b.keep(ctx) })
	all.Wait()
	b.delete()
}

// read dispatches one stream in order. After a failure it goes on from the last id.
func (b *mailbox) read(ctx context.Context, s *shard) {
	wait := retryFrom
	for ctx.Err() == nil {
		if s.attached.Load() || b.attach(ctx, s) {
			err := b.readOnce(ctx, s, wait == retryFrom)
			if err == nil {
				wait = retryFrom
				continue
			}
			b.lost(ctx, s, err)
		}
		wait, _ = pause(ctx, &b.r.link, wait)
	}
}

// readOnce waits for entries, at most readBlock. After a failure it asks for one and
// waits long enough for the largest: many may have been too much for the network.
func (b *mailbox) readOnce(ctx context.Context, s *shard, well bool) error {
	count, within := int64(readCount), readBlock+b.r.cfg.Timeout
	if !well {
		count, within = 1, within+response.MaxPayload*time.Second/slowest
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	streams, err := b.reads.XRead(ctx, &goredis.XReadArgs{
		Streams: []string{s.key, *s.last.Load()}, Count: count, Block: readBlock,
	}).Result()
	if err != nil {
		if errors.Is(err, goredis.Nil) {
			return nil
		}
		return err
	}
	for i := range streams {
		b.dispatch(s, streams[i].Messages)
	}
	return nil
}

func (b *mailbox) dispatch(s *shard, entries []goredis.XMessage) {
	m := b.r.metrics
	for i := range entries {
		text, is := entries[i].Values[response.StreamField].(string)
		if !is {
			continue // attach's own
		}
		e, err := response.Parse([]byte(text))
		if err != nil {
			m.malformed.Inc()
			b.r.log.Debug("entry is no event", "mailbox", s.key, "entry", entries[i].ID, "error", err)
			continue
		}
		b.handle(e)
	}
	if n := len(entries); n > 0 {
		s.last.Store(&entries[n-1].ID)
		m.events.Add(float64(n))
		m.size.Observe(float64(n))
		if s.since += n; s.since >= trimAfter {
			s.since = 0
			kick(b.trim)
		}
	}
}

// keep renews and trims every Config.Renew, and trims when a reader asks for it.
func (b *mailbox) keep(ctx context.Context) {
	tick := time.NewTicker(b.r.cfg.Renew)
	defer tick.Stop()
	for {
		b.renew(ctx)
		select {
		case <-tick.C:
		case <-b.trim:
		case <-ctx.Done():
			return
		}
	}
}

// renew prolongs liveness and streams, trims what was dispatched, and makes streams
// that are not there.
func (b *mailbox) renew(ctx context.Context) {
	cfg := &b.r.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	pipeline := b.calls.Pipeline()
	pipeline.Set(ctx, b.alive, 1, cfg.Alive)
	there := make([]*goredis.BoolCmd, len(b.shards))
	for i := range b.shards {
		s := &b.shards[i]
		there[i] = pipeline.PExpire(ctx, s.key, cfg.Keep)
		if last := *s.last.Load(); last != s.trimmed {
			s.trimmed = last
			pipeline.XTrimMinIDApprox(ctx, s.key, following(last), 0)
		}
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		b.r.metrics.failed.Inc()
		b.r.log.Debug("mailbox not renewed", "incarnation", b.incarnation, "error", err)
		return
	}
	for i := range b.shards {
		if s := &b.shards[i]; !there[i].Val() {
			if *s.last.Load() != "0-0" {
				b.r.metrics.recreated.Inc()
			}
			b.attach(ctx, s)
		}
	}
}

// attach makes s's stream where it is not there, and in any case lets its next id
// follow what was dispatched: a Redis that lost the stream, or restored an old copy
// on a host whose clock is behind, would give lower ids, which no read would see.
// Writers do not make streams, so nothing comes before this.
func (b *mailbox) attach(parent context.Context, s *shard) bool {
	cfg := &b.r.cfg
	ctx, cancel := context.WithTimeout(parent, cfg.Timeout)
	defer cancel()
	last := *s.last.Load()
	pipeline := b.calls.Pipeline()
	pipeline.Set(ctx, b.alive, 1, cfg.Alive)
	add := pipeline.XAdd(ctx, &goredis.XAddArgs{Stream: s.key, ID: following(last), Values: []string{"from", last}})
	pipeline.PExpire(ctx, s.key, cfg.Keep)
	_, err := pipeline.Exec(ctx)
	if refused(add.Err(), "ERR The ID specified in XADD is equal or smaller") {
		err = nil // newer entries are there
	}
	if err != nil {
		b.lost(parent, s, err)
		return false
	}
	s.tried.Store(true)
	if !s.attached.Swap(true) {
		b.r.log.Info("mailbox is read", "mailbox", s.key, "from", last)
	}
	return true
}

// lost notes that s cannot be read now, unless the end of ctx is the reason.
func (b *mailbox) lost(ctx context.Context, s *shard, err error) {
	if ctx.Err() != nil {
		return
	}
	b.r.metrics.failed.Inc()
	if first := !s.tried.Swap(true); s.attached.Swap(false) || first {
		b.r.log.Warn("mailbox cannot be read", "mailbox", s.key, "error", err)
	}
}

// delete removes the mailbox from Redis, as far as that answers; else it expires.
func (b *mailbox) delete() {
	ctx, cancel := context.WithTimeout(context.Background(), b.r.cfg.Timeout)
	defer cancel()
	keys := []string{b.alive}
	for i := range b.shards {
		keys = append(keys, b.shards[i].key)
	}
	if err := b.calls.Del(ctx, keys...).Err(); err != nil {
		b.r.log.Debug("mailbox not deleted", "incarnation", b.incarnation, "error", err)
	}
	b.hangUp()
}

func (b *mailbox) hangUp() {
	b.cancel()
	_ = b.calls.Close()
	_ = b.reads.Close()
}

// following is the id right after an entry's.
func following(id string) string {
	ms, seq, _ := strings.Cut(id, "-")
	n, _ := strconv.ParseUint(seq, 10, 64) // Redis wrote it
	return ms + "-" + strconv.FormatUint(n+1, 10)
}
