package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/redisconn"
	"penstock/response"
)

// Reader is the gateway's side: it reads the mailboxes that are open.
type Reader struct {
	cfg     Config
	log     *slog.Logger
	metrics *readerMetrics
	link    redisconn.Link

	mu    sync.Mutex // guards what follows
	boxes map[string]*mailbox
	start func(*mailbox) // set while Run runs
	ended bool
}

// NewReader makes a reader; nothing is read before Run.
func NewReader(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Reader{cfg: cfg, log: log, boxes: map[string]*mailbox{}}
	m, err := newReaderMetrics(reg, func() float64 { return float64(r.away()) })
	if err != nil {
		return nil, fmt.Errorf("response/redis: %w", err)
	}
	r.metrics = m
	return r, nil
}

// Address is the reply address, a stream, at which events of the request id reach
// the mailbox that was opened for incarnation.
func (r *Reader) Address(incarnation, id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return response.Mailbox(r.cfg.Prefix, incarnation, int(h.Sum32()%uint32(r.cfg.Shards)))
}

// Open makes handle the reader of incarnation's mailbox, which is new with every
// start of a gateway and holds no colon. handle is called by Config.Shards
// goroutines, for one request always by the same, and must not wait for a client:
// all that share the shard would wait too. It copies what it keeps of Payload.
//
// Open waits for Redis once, at most Config.Timeout; where Redis is away the mailbox
// is made when it is back, and Ready is false until then. Events flow while Run runs.
// close deletes the mailbox and returns when handle is not called any more.
func (r *Reader) Open(incarnation string, handle func(response.Event)) (close func(), err error) {
	if incarnation == "" || strings.Contains(incarnation, ":") {
		return nil, fmt.Errorf("response/redis: incarnation %q: give one without colons", incarnation)
	}
	b := newMailbox(r, incarnation, handle)
	r.mu.Lock()
	switch {
	case r.ended:
		err = errors.New("response/redis: reader stopped")
	case r.boxes[incarnation] != nil:
		err = fmt.Errorf("response/redis: mailbox %q is open already", incarnation)
	default:
		r.boxes[incarnation] = b
	}
	r.mu.Unlock()
	if err != nil {
		b.hangUp()
		return nil, err
	}
	b.renew(context.Background())
	r.mu.Lock()
	b.opened = true
	r.startLocked(b)
	r.mu.Unlock()
	return func() { r.close(b) }, nil
}

// startLocked starts b where Run runs; Run itself starts what was opened before.
func (r *Reader) startLocked(b *mailbox) {
	if r.start != nil && b.opened {
		b.started = true
		r.start(b)
	}
}

func (r *Reader) close(b *mailbox) {
	r.mu.Lock()
	open := r.boxes[b.incarnation] == b
	if open {
		delete(r.boxes, b.incarnation)
	}
	started := b.started
	r.mu.Unlock()
	switch b.cancel(); {
	case started:
		<-b.done
	case open:
		b.delete()
	}
}

// Run reads until ctx ends, deletes the mailboxes and returns when no goroutine is
// left. It is called once, and ends after the gateway has drained.
func (r *Reader) Run(ctx context.Context) error {
	var boxes sync.WaitGroup
	r.mu.Lock()
	r.start = func(b *mailbox) {
		boxes.Go(func() { b.run(ctx) })
	}
	for _, b := range r.boxes {
		r.startLocked(b)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.start, r.ended = nil, true
	r.mu.Unlock()
	boxes.Wait()
	return nil
}

// away counts the streams that cannot be read now.
func (r *Reader) away() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, b := range r.boxes {
		for i := range b.shards {
			if !b.shards[i].attached.Load() {
				n++
			}
		}
	}
	return n
}

// Ready reports whether every open mailbox can be read. Any goroutine may call it.
func (r *Reader) Ready() bool { return r.away() == 0 }
