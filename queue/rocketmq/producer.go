package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/queue"
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

	up   chan struct{} // closed once send is set
	send atomic.Pointer[sender]
	// failed is when a publish last found the broker away, unix ns; 0 = one got through since.
	failed atomic.Int64
}

// sender is the library's Send.
type sender func(context.Context, *rmq.Message) ([]*rmq.SendReceipt, error)

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
	sdkLog.log.Store(p.log)
	defer p.Close()
	said := time.Time{}
	pause := 100 * time.Millisecond
	for ctx.Err() == nil {
		s, stop, err := p.start(ctx)
		if err == nil {
			p.tell("")
			s.live(ctx)
			p.tell("stopping")
			if ctx.Err() != nil {
				p.Close()
			}
			stop()
			continue
		}
		if ctx.Err() != nil {
			break
		}
		p.tell("broker away: " + err.Error())
		if time.Since(said) >= complained {
			said = time.Now()
			p.log.Warn("broker away", "endpoint", p.cfg.Endpoint, "err", remedy(err))
		}
		wait(ctx, pause)
		pause = min(2*pause, maxPause)
	}
	return nil
}

// live waits until ctx ends or the proxy has said nothing for silence: the client is
// then replaced.
func (s *session) live(ctx context.Context) {
	for ctx.Err() == nil && time.Since(time.Unix(0, s.heard.Load())) < silence {
		wait(ctx, time.Second)
	}
}

func (p *Producer) start(ctx context.Context) (s *session, stop func(), err error) {
	if err := reach(ctx, p.cfg, false); err != nil {
		return nil, nil, err
	}
	if err := install(&p.cfg); err != nil {
		return nil, nil, err
	}
	s = newSession(0, nil)
	producer, err := rmq.NewProducer(
		&rmq.Config{Endpoint: p.cfg.Endpoint, Credentials: p.cfg.credentials()},
		rmq.WithTopics(p.cfg.Topic), rmq.WithMaxAttempts(1),
	)
	if err == nil {
		err = s.enter(producer)
	}
	if err != nil {
		s.end()
		return nil, nil, err
	}
	if err := started(s, producer.Start); err != nil {
		return nil, nil, err
	}
	send := sender(producer.Send)
	if p.send.Swap(&send) == nil {
		close(p.up)
	}
	return s, func() {
		within(stopWithin, func() { _ = producer.GracefulStop() })
		s.leave()
	}, nil
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
	msg := &rmq.Message{Topic: p.cfg.Topic, Body: body}
	for name, value := range properties {
		msg.AddProperty(name, value)
	}
	msg.SetLiteTopic(lane.Name(p.cfg.Secret, m.Lane, m.Shard))
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		_, err := (*p.send.Load())(limit, msg)
		if err == nil {
			return nil
		}
		if hopeless := refused(err); hopeless != nil {
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
	return fmt.Errorf("%w: %w", queue.ErrAway, remedy(last))
}

// refused is the error of a message that no retry gets through; nil means that the
// broker restarts or is busy. TOPIC_NOT_FOUND and MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
// are what a proxy says while a name server or broker comes back, UNAUTHORIZED what it
// says for seconds after when it did not find the user in a broker that was away.
func refused(err error) error {
	switch codeOf(err) {
	case pb.Code_PAYLOAD_TOO_LARGE, pb.Code_MESSAGE_BODY_TOO_LARGE, pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, pb.Code_REQUEST_HEADER_FIELDS_TOO_LARGE:
		return fmt.Errorf("%w: the broker's maxMessageSize is below ours: %w", queue.ErrTooLarge, err)
	case pb.Code_LITE_TOPIC_QUOTA_EXCEEDED:
		return fmt.Errorf("%w: too many lanes, raise the broker's maxLmqConsumeQueueNum: %w", queue.ErrFull, err)
	case pb.Code_ILLEGAL_LITE_TOPIC, pb.Code_ILLEGAL_TOPIC, pb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, pb.Code_FORBIDDEN, pb.Code_BAD_REQUEST, pb.Code_VERSION_UNSUPPORTED:
		return fmt.Errorf("rocketmq: refused: %w", remedy(err))
	}
	return nil
}
