package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
)

// unready is how long after a failed publish the producer says so; then the next one
// has to find out.
const unready = 3 * time.Second

// Producer publishes to the lanes. It is safe for concurrent use.
type Producer struct {
	cfg     Config
	log     *slog.Logger
	metrics *producerMetrics
	ran     atomic.Bool
	closed  chan struct{}
	close   sync.Once
	why     atomic.Pointer[string] // why not ready

	up     chan struct{} // closed once client is set
	client atomic.Pointer[proxy.Producer]
	// failed is when a publish last found the broker away, unix ns; 0 = one got through since.
	failed atomic.Int64
}

// NewProducer returns a producer; Publish waits for its Run to have come up.
func NewProducer(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Producer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newProducerMetrics(reg)
	if err != nil {
		return nil, err
	}
	p := &Producer{cfg: cfg, log: log, metrics: m, closed: make(chan struct{}), up: make(chan struct{})}
	p.tell("starting")
	return p, nil
}

func (p *Producer) tell(why string) {
	p.why.Store(&why)
	up := 0.0
	if why == "" {
		up = 1
	}
	p.metrics.up.Set(up)
}

// Ready reports whether requests can be published, and why not.
func (p *Producer) Ready() (bool, string) {
	why := *p.why.Load()
	if why == "" && time.Since(time.Unix(0, p.failed.Load())) < unready {
		why = "broker away: the last publish failed"
	}
	return why == "", why
}

// Run keeps the producer up until ctx ends, and comes up when the broker does. A
// Producer runs once.
func (p *Producer) Run(ctx context.Context) error {
	if p.ran.Swap(true) {
		return errors.New("rocketmq: the producer has run already; take a new one")
	}
	proxy.LogTo(p.log)
	defer p.Close()
	said := time.Time{}
	pause := 100 * time.Millisecond
	for ctx.Err() == nil {
		client, err := proxy.StartProducer(ctx, p.cfg.Config)
		if err == nil {
			if p.client.Swap(client) == nil {
				close(p.up)
			}
			p.tell("")
			client.Live(ctx)
			p.tell("stopping")
			if ctx.Err() != nil {
				p.Close()
			}
			client.Stop()
			continue
		}
		if ctx.Err() != nil {
			break
		}
		p.tell("broker away: " + err.Error())
		if time.Since(said) >= complained {
			said = time.Now()
			p.log.Warn("broker away", "endpoint", p.cfg.Endpoint, "err", proxy.Remedy(err))
		}
		wait(ctx, pause)
		pause = min(2*pause, maxPause)
	}
	return nil
}

// Close makes every later Publish fail with ErrClosed; the end of Run does it too.
func (p *Producer) Close() { p.close.Do(func() { close(p.closed); p.tell("stopped") }) }

// Publish hands m to the broker, to the shard m.Shard of its lane, and returns once
// the broker has it. It gives up with queue.ErrAway when the broker does not confirm
// within PublishTimeout, with queue.ErrTooLarge when it never will, with
// queue.ErrClosed after the end of Run, and with ctx's error when that ended first.
// After an error the message may still have arrived.
func (p *Producer) Publish(ctx context.Context, m *queue.Message) error {
	began := time.Now()
	err := p.publish(ctx, m)
	outcome := "sent"
	switch {
	case err == nil:
		p.failed.Store(0)
	case errors.Is(err, queue.ErrAway):
		p.failed.Store(time.Now().UnixNano())
		outcome = "away"
	default:
		outcome = "refused"
	}
	p.metrics.seconds.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	return err
}

func (p *Producer) publish(ctx context.Context, m *queue.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	properties, body := encode(m, p.cfg.ahead())
	if err := bounded(m, properties); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, p.cfg.PublishTimeout, queue.ErrAway)
	defer cancel()
	select {
	case <-p.closed:
		return queue.ErrClosed
	default:
	}
	select {
	case <-p.closed:
		return queue.ErrClosed
	case <-p.up:
	case <-limit.Done():
		return p.gaveUp(ctx, fmt.Errorf("not connected: %s", *p.why.Load()))
	}
	topic := lane.Name(p.cfg.Secret, m.Lane, m.Shard)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := p.client.Load().Send(limit, topic, properties, body)
		if err == nil {
			return nil
		}
		if hopeless := proxy.Refused(err); hopeless != nil {
			return hopeless
		}
		select {
		case <-p.closed:
			return queue.ErrClosed
		case <-time.After(pause):
		case <-limit.Done():
			return p.gaveUp(ctx, err)
		}
	}
}

// gaveUp is the error of a Publish without an answer in time.
func (p *Producer) gaveUp(ctx context.Context, last error) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", queue.ErrAway, proxy.Remedy(last))
}
