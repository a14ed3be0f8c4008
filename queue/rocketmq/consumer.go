package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
)

// strange is how old a message of a known version that cannot be read may become: it
// has been with several agents by then, and its lane goes on without it.
const strange = time.Minute

// Consumer takes messages for one engine. It is safe for concurrent use.
type Consumer struct {
	cfg     Config
	log     *slog.Logger
	metrics *consumerMetrics
	lanes   *directory
	ran     atomic.Bool
	state   atomic.Pointer[string] // why not ready; nil = ready

	handler  queue.Handler
	hard     context.Context // the handlers'
	draining atomic.Bool
	mu       sync.Mutex // guards said
	said     map[string]time.Time
}

// NewConsumer returns a consumer that accepts nothing and knows no lanes yet.
func NewConsumer(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Consumer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newConsumerMetrics(reg)
	if err != nil {
		return nil, err
	}
	c := &Consumer{cfg: cfg, log: log, metrics: m, lanes: newDirectory(cfg.Secret), said: map[string]time.Time{}}
	c.tell("starting")
	return c, nil
}

// Accept sets which lanes the consumer takes, nil for none: their subscriptions
// follow at once. Running handlers are left alone. match must be quick and give the
// same answer for the same key until the next Accept.
func (c *Consumer) Accept(match func(lane.Key) bool) { c.lanes.accept(match) }

// SetLanes tells the whole lane directory; it does not block. A lane that is missing
// stays subscribed for 11 minutes more.
func (c *Consumer) SetLanes(entries []lane.Entry) { c.lanes.set(time.Now(), entries) }

// Ready reports whether deliveries can come, and why not.
func (c *Consumer) Ready() (bool, string) {
	if why := c.state.Load(); why != nil {
		return false, *why
	}
	return true, ""
}

func (c *Consumer) tell(why string) {
	if why == "" {
		c.state.Store(nil)
		c.metrics.up.Set(1)
		return
	}
	c.state.Store(&why)
	c.metrics.up.Set(0)
}

// Run delivers to h, each delivery in a goroutine of its own, until ctx ends; then it
// unsubscribes, ends the handlers' context, waits for all of them and for their
// results to reach the broker, the latter at most 9 s, and returns nil. It comes up
// when the broker does. A Consumer runs once. A handler's panic is counted and taken
// for a Suspend.
func (c *Consumer) Run(ctx context.Context, h queue.Handler) error {
	if c.ran.Swap(true) {
		return errors.New("rocketmq: the consumer has run already; take a new one")
	}
	proxy.LogTo(c.log)
	hard, end := context.WithCancel(context.WithoutCancel(ctx))
	c.handler, c.hard = h, hard
	var retired sync.WaitGroup
	defer retired.Wait()
	defer end()
	pause := 100 * time.Millisecond
	for ctx.Err() == nil {
		cl, err := c.start(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.tell("broker away: " + err.Error())
				c.complain("broker away", "endpoint", c.cfg.Endpoint, "err", proxy.Remedy(err))
			}
			wait(ctx, pause)
			pause = min(2*pause, maxPause)
			continue
		}
		pause = 100 * time.Millisecond
		cause := c.serve(ctx, cl)
		if cause == "" {
			c.tell("stopping")
			c.draining.Store(true)
			c.metrics.topics.Set(0)
			cl.Unsubscribe()
			end()
			cl.Retire()
			break
		}
		c.metrics.failures.WithLabelValues(failureRebuild).Inc()
		c.log.Warn("broker client is replaced", "cause", cause)
		c.metrics.topics.Set(0)
		retired.Go(cl.Retire)
	}
	c.tell("stopped")
	return nil
}

// client is one consumer of the proxy and what it is at.
type client struct {
	*proxy.Consumer
	work *work
}

// start brings up a client.
func (c *Consumer) start(ctx context.Context) (client, error) {
	w := newWork()
	counts := proxy.Counts{AckRefused: c.metrics.failures.WithLabelValues(failureAck), LeaseLost: c.metrics.failures.WithLabelValues(failureLease)}
	taker, err := proxy.StartConsumer(ctx, c.cfg.Config, c.cfg.Concurrency, counts, func(d *proxy.Delivery) queue.Result { return c.consume(w, d) })
	return client{taker, w}, err
}

// serve keeps the client's subscriptions until ctx ends, or says why it has to be
// replaced.
func (c *Consumer) serve(ctx context.Context, cl client) (cause string) {
	work, stop := context.WithCancel(ctx)
	var g sync.WaitGroup
	defer g.Wait()
	defer stop()
	sub := newSubscriber(c, cl)
	g.Go(func() { sub.run(work) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if cause := cl.Dead(time.Now()); cause != "" {
			return cause
		}
		if fails := cl.Failing(); fails > 1 {
			c.tell(fmt.Sprintf("broker away: %d receives failed in a row", fails))
		} else {
			c.tell("")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ""
		}
	}
}

// consume answers a delivery of one client.
func (c *Consumer) consume(w *work, d *proxy.Delivery) queue.Result {
	w.begin(d.Topic)
	result := queue.Suspend(queue.MinSuspend)
	if !c.draining.Load() && !d.Late {
		result = c.deliver(d)
	}
	after, again := result.After()
	w.finish(d.Topic, time.Now().Add(after))
	if again {
		c.metrics.suspended.Inc()
	} else {
		c.metrics.acked.Inc()
	}
	return result
}

func (c *Consumer) deliver(d *proxy.Delivery) queue.Result {
	m, err := decode(d.Properties, d.Body, c.cfg.ahead())
	if err != nil {
		c.metrics.failures.WithLabelValues(failureMalformed).Inc()
		c.complain("message cannot be read", "topic", d.Topic, "err", err)
		if !d.Born.IsZero() && time.Since(d.Born) > strange {
			return queue.Ack()
		}
		return queue.Suspend(queue.MaxSuspend)
	}
	if m.Version != queue.Version {
		c.metrics.failures.WithLabelValues(failureVersion).Inc()
	}
	if !c.lanes.accepts(m.Lane) {
		return queue.Suspend(queue.MinSuspend) // given up a moment ago: for another node
	}
	defer d.Hold()()
	return c.safely(m)
}

// safely serves m; a panic is an answer too.
func (c *Consumer) safely(m *queue.Message) (result queue.Result) {
	defer func() {
		if p := recover(); p != nil {
			c.metrics.failures.WithLabelValues(failurePanic).Inc()
			c.log.Error("handler panicked", "id", m.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			result = queue.Suspend(queue.MaxSuspend)
		}
	}()
	return c.handler(c.hard, m, func() {})
}

// complain logs a condition that lasts, once per complained.
func (c *Consumer) complain(what string, args ...any) {
	c.mu.Lock()
	again := time.Since(c.said[what]) >= complained
	if again {
		c.said[what] = time.Now()
	}
	c.mu.Unlock()
	if again {
		c.log.Warn("broker trouble", append([]any{"what", what}, args...)...)
	}
}

func (c *Consumer) subscribeFailed(err error) {
	c.metrics.failures.WithLabelValues(failureSubscribe).Inc()
	c.complain("subscription failed", "err", proxy.Remedy(err))
}
