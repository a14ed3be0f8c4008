package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus"

	"penstock/queue"
)

// Counts are raised by consumers.
type Counts struct {
	AckRefused prometheus.Counter // the library would have acknowledged a Suspend
	LeaseLost  prometheus.Counter // a result or renewal came after its lease
}

// Consumer is a consumer of the library that has started. It takes what it is subscribed
// to until it is retired, and is safe for concurrent use.
type Consumer struct {
	lib     rmq.LitePushConsumer
	session *session
	handle  func(*Delivery) queue.Result
	running sync.WaitGroup // handlers, before the client retires
	left    atomic.Bool    // unsubscribed
}

// Delivery is a message that is ours until its handler returns.
type Delivery struct {
	Topic      string // the LiteTopic
	Properties map[string]string
	Body       []byte
	Born       time.Time // when it was published, by its producer's clock; zero = not told
	Late       bool      // the consumer retires: for another one, so Suspend at once

	renew func() error
}

// Hold renews the lease, which is Lease from the delivery on, until end is called. The
// handler does so before it returns: its result needs the last renewal's handle.
func (d *Delivery) Hold() (end func()) { return newLease(d.renew).end }

// StartConsumer returns a consumer once the proxy has answered it; it takes 2 s, and 12 s
// at most. The error of a proxy that refuses says what to do. At most concurrency
// handlers run at once, each in a goroutine of the library's; a handler must not panic.
// The caller ends the consumer with Retire.
func StartConsumer(ctx context.Context, cfg Config, concurrency int, counts Counts, handle func(*Delivery) queue.Result) (*Consumer, error) {
	if err := reach(ctx, cfg, true); err != nil {
		return nil, err
	}
	if err := install(&cfg); err != nil {
		return nil, err
	}
	c := &Consumer{session: newSession(concurrency, counts), handle: handle}
	var err error
	c.lib, err = rmq.NewLitePushConsumer(
		&rmq.Config{Endpoint: cfg.Endpoint, ConsumerGroup: cfg.Group, Credentials: cfg.user()},
		rmq.NewLitePushConsumerConfig(cfg.Topic, Lease),
		rmq.WithPushConsumptionThreadCount(int32(concurrency)),
		// Our slots are the bound. The library's is not exact, and it halves it for two queues.
		rmq.WithPushMaxCacheMessageCount(2*(int32(concurrency)+64)),
		rmq.WithPushMaxCacheMessageSizeInBytes(2*int64(concurrency+64)*MaxBody),
		rmq.WithPushEnableFifoConsumeAccelerator(true),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: c.consume}),
	)
	if err == nil {
		err = c.session.enter(c.lib)
	}
	if err != nil {
		c.session.end()
		return nil, err
	}
	if err := started(c.session, c.lib.Start); err != nil {
		return nil, err
	}
	return c, nil
}

// consume is the library's listener. It returns Suspend or success, never failure:
// the library would then let the lane's next message overtake this one.
func (c *Consumer) consume(mv *rmq.MessageView) rmq.ConsumerResult {
	defer c.session.release()
	d := &Delivery{Topic: mv.GetLiteTopic(), Properties: mv.GetProperties(), Body: mv.GetBody(), renew: func() error { return c.lib.ChangeInvisibleDuration(mv, Lease) }}
	if born := mv.GetBornTimestamp(); born != nil {
		d.Born = *born
	}
	if c.enter() {
		defer c.running.Done()
	} else {
		d.Late = true
	}
	after, again := c.handle(d).After()
	c.session.settle(mv.GetMessageId(), !again)
	if again {
		return rmq.NewConsumerResultSuspend(after)
	}
	return rmq.SUCCESS
}

// enter counts a handler in, unless its client retires.
func (c *Consumer) enter() bool {
	c.session.mu.Lock() // cutPolls holds it once more before running is waited for
	defer c.session.mu.Unlock()
	select {
	case <-c.session.closing:
		return false
	default:
		c.running.Add(1)
		return true
	}
}

// Dead says why a consumer that should receive does not; "" = it does. It is then to
// be replaced.
func (c *Consumer) Dead(now time.Time) string { return c.session.dead(now) }

// Failing is how many receives have failed in a row.
func (c *Consumer) Failing() int { return int(c.session.fails.Load()) }

// Link is what is known of the way to the broker.
type Link struct {
	Quota  int       // LiteTopics the group allows one consumer; 0 = not told
	Failed time.Time // when something last failed: the broker may have forgotten the subscriptions
}

// Link returns the newest.
func (c *Consumer) Link() Link {
	return Link{Quota: int(c.session.quota.Load()), Failed: time.Unix(0, c.session.failed.Load())}
}

// Back receives when proxy or broker came back, perhaps without the subscriptions; size 1.
func (c *Consumer) Back() <-chan struct{} { return c.session.back }

// Action is what a Change does with its topics.
type Action = pb.LiteSubscriptionAction

// The actions. Replace takes all there are; the others' are a thousand at most.
const (
	Replace = pb.LiteSubscriptionAction_COMPLETE_ADD
	Add     = pb.LiteSubscriptionAction_PARTIAL_ADD
	Remove  = pb.LiteSubscriptionAction_PARTIAL_REMOVE
)

// Change is a set of LiteTopics to subscribe, or not any more.
type Change struct {
	Action Action
	Topics []string
}

// Keep tells what the library repeats every 30 s as the whole subscription.
func (c *Consumer) Keep(topics []string) {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	c.session.topics = topics
}

// Subscribe makes a change with one call to the proxy, of 3 s at most. One goroutine at a
// time calls it; Remedy explains the error.
func (c *Consumer) Subscribe(ch Change) error {
	c.session.mu.Lock()
	c.session.next = &ch
	c.session.mu.Unlock()
	return c.lib.SubscribeLite("penstock") // the call is filled with what next says
}

// Unsubscribe gives up all subscriptions, within 3 s, so that the proxy delivers nothing
// more.
func (c *Consumer) Unsubscribe() {
	c.left.Store(true)
	within(stopWithin, func() {
		c.Keep(nil)
		_ = c.Subscribe(Change{Action: Replace})
	})
}

// pollRest lets a delivery that was on its way when the subscriptions ended arrive
// before its poll is cut; otherwise it would come again only after its lease.
const pollRest = 50 * time.Millisecond

// Retire ends a consumer, once: no further polls, its subscriptions if Unsubscribe was
// not called, then the running handlers, then their results, then the library's own
// stop, which would wait for open polls. Beside the handlers it takes 9 s at most.
func (c *Consumer) Retire() {
	s := c.session
	close(s.closing)
	if !c.left.Load() {
		c.Unsubscribe()
	}
	time.Sleep(pollRest)
	s.cutPolls()
	c.running.Wait()
	for until := time.Now().Add(stopWithin); s.results() > 0 && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
	s.retiring.Store(true)
	time.AfterFunc(10*time.Millisecond, func() { close(s.stopping) })
	within(stopWithin, func() { _ = c.lib.GracefulStop() })
	s.leave()
}
