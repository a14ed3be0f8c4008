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

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/queue"
)

const (
	// startWithin bounds one start of the client; with a proxy it takes a good second.
	startWithin = 10 * time.Second
	// silence is how long the proxy may say nothing (heartbeats are every 10 s), and a
	// long poll (20 s) may take, before the client is replaced.
	silence = 45 * time.Second
	// complained is how often one complaint is logged.
	complained = 10 * time.Second
	// strange is how old a message of a known version that cannot be read may become: it
	// has been with several agents by then, and its lane goes on without it.
	strange = time.Minute
)

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
	sdkLog.log.Store(c.log)
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
				c.complain("broker away", "endpoint", c.cfg.Endpoint, "err", remedy(err))
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
			c.unsubscribe(cl)
			end()
			c.retire(cl)
			break
		}
		c.metrics.failures.WithLabelValues(failureRebuild).Inc()
		c.log.Warn("broker client is replaced", "cause", cause)
		retired.Go(func() { c.retire(cl) })
	}
	c.tell("stopped")
	return nil
}

// client is one consumer of the library.
type client struct {
	rmq.LitePushConsumer
	session *session
	running sync.WaitGroup // handlers
}

// start brings up a client.
func (c *Consumer) start(ctx context.Context) (*client, error) {
	if err := reach(ctx, c.cfg, true); err != nil {
		return nil, err
	}
	if err := install(&c.cfg); err != nil {
		return nil, err
	}
	s := newSession(c.cfg.Concurrency, c.metrics)
	cl := &client{session: s}
	var err error
	cl.LitePushConsumer, err = rmq.NewLitePushConsumer(
		&rmq.Config{Endpoint: c.cfg.Endpoint, ConsumerGroup: c.cfg.Group, Credentials: c.cfg.credentials()},
		rmq.NewLitePushConsumerConfig(c.cfg.Topic, Lease),
		rmq.WithPushConsumptionThreadCount(int32(c.cfg.Concurrency)),
		// Our slots are the bound. The library's is not exact, and it halves it for two queues.
		rmq.WithPushMaxCacheMessageCount(2*(int32(c.cfg.Concurrency)+64)),
		rmq.WithPushMaxCacheMessageSizeInBytes(2*int64(c.cfg.Concurrency+64)*MaxBody),
		rmq.WithPushEnableFifoConsumeAccelerator(true),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(mv *rmq.MessageView) rmq.ConsumerResult { return c.consume(cl, mv) }}),
	)
	if err != nil {
		s.end()
		return nil, err
	}
	if err := s.enter(cl.LitePushConsumer); err != nil {
		s.end()
		return nil, err
	}
	return cl, started(s, cl.Start)
}

// started runs the library's start, which has no end of its own when the proxy is
// silent: the end of the session fails it.
func started(s *session, start func() error) error {
	limit := time.AfterFunc(startWithin, s.end)
	err := start()
	if !limit.Stop() && err == nil {
		err = errors.New("the client's start took too long")
	}
	if err != nil {
		s.leave()
	}
	return err
}

func (c *Config) credentials() *credentials.SessionCredentials {
	if c.AccessKey == "" {
		return nil
	}
	return &credentials.SessionCredentials{AccessKey: c.AccessKey, AccessSecret: c.SecretKey}
}

// serve keeps the client's subscriptions until ctx ends, or says why it has to be
// replaced.
func (c *Consumer) serve(ctx context.Context, cl *client) (cause string) {
	work, stop := context.WithCancel(ctx)
	var g sync.WaitGroup
	defer g.Wait()
	defer stop()
	sub := newSubscriber(c, cl.session, cl.LitePushConsumer)
	g.Go(func() { sub.run(work) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if cause := cl.session.dead(time.Now()); cause != "" {
			return cause
		}
		if fails := cl.session.fails.Load(); fails > 1 {
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

// dead says why a client that should receive does not.
func (s *session) dead(now time.Time) string {
	since := func(at *atomic.Int64) time.Duration { return now.Sub(time.Unix(0, at.Load())) }
	switch {
	case s.flipped.Load():
		return "it lost the lanes' order"
	case since(&s.polled) > silence:
		return "its receive loop has ended"
	case since(&s.heard) > silence:
		return "the proxy says nothing"
	}
	return ""
}

// unsubscribe ends deliveries to a client.
func (c *Consumer) unsubscribe(cl *client) {
	within(stopWithin, func() { _ = newSubscriber(c, cl.session, cl.LitePushConsumer).clear() })
}

// pollRest lets a delivery that was on its way when the subscriptions ended arrive
// before its poll is cut; otherwise it would come again only after its lease.
const pollRest = 50 * time.Millisecond

// retire ends a client: no further polls, then the running handlers, then their
// results, then the library's own stop, which would wait for open polls.
func (c *Consumer) retire(cl *client) {
	s := cl.session
	close(s.closing)
	if !c.draining.Load() {
		c.unsubscribe(cl)
	}
	time.Sleep(pollRest)
	s.cutPolls()
	cl.running.Wait()
	for until := time.Now().Add(stopWithin); s.results() > 0 && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
	s.retiring.Store(true)
	time.AfterFunc(10*time.Millisecond, func() { close(s.stopping) })
	within(stopWithin, func() { _ = cl.GracefulStop() })
	s.leave()
}

// within runs f and waits at most d for it.
func within(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// enter counts a handler in, unless its client retires.
func (cl *client) enter() bool {
	cl.session.mu.Lock() // cutPolls holds it once more before running is waited for
	defer cl.session.mu.Unlock()
	select {
	case <-cl.session.closing:
		return false
	default:
		cl.running.Add(1)
		return true
	}
}

// consume is the library's listener. It returns Suspend or success, never failure:
// the library would then let the lane's next message overtake this one.
func (c *Consumer) consume(cl *client, mv *rmq.MessageView) rmq.ConsumerResult {
	defer cl.session.release()
	cl.session.begin(mv.GetLiteTopic())
	result := queue.Suspend(queue.MinSuspend)
	if !c.draining.Load() && cl.enter() {
		func() {
			defer cl.running.Done()
			result = c.deliver(cl, mv)
		}()
	}
	after, again := result.After()
	cl.session.finish(mv.GetLiteTopic(), time.Now().Add(after))
	cl.session.settle(mv.GetMessageId(), !again)
	if again {
		c.metrics.suspended.Inc()
		return rmq.NewConsumerResultSuspend(after)
	}
	c.metrics.acked.Inc()
	return rmq.SUCCESS
}

func (c *Consumer) deliver(cl *client, mv *rmq.MessageView) queue.Result {
	m, err := decode(mv.GetProperties(), mv.GetBody(), c.cfg.ahead())
	if err != nil {
		c.metrics.failures.WithLabelValues(failureMalformed).Inc()
		c.complain("message cannot be read", "topic", mv.GetLiteTopic(), "err", err)
		if born := mv.GetBornTimestamp(); born != nil && time.Since(*born) > strange {
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
	l := newLease(func() error { return cl.ChangeInvisibleDuration(mv, Lease) })
	defer l.end()
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
	c.complain("subscription failed", "err", remedy(err))
}
