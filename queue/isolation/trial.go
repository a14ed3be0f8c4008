package isolation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"penstock/lane"
	"penstock/queue"
)

const (
	// bodyBytes is a prompt of some hundred tokens.
	bodyBytes = 2000
	// probeWithin bounds the time until every lane has had its first message, late is
	// how far behind its schedule publishing may fall, drainWithin bounds the rest: two
	// leases of a broker, so that what a lost delivery holds comes again.
	probeWithin = 30 * time.Second
	late        = 10 * time.Second
	drainWithin = 30 * time.Second
)

// trial is one case in one round.
type trial struct {
	cfg    *Config
	how    How
	slots  int
	series uint32        // in the ids of its messages
	lifted chan struct{} // closed: no more limits, what is left is drained
	empty  chan struct{} // size 1: nothing is left

	mu    sync.Mutex // guards below
	lines []line
	begin time.Time // of the schedule; zero while lanes are probed
	left  int       // published or about to be, and not started
	count
}

// count is what happened between Warm and the end of Span.
type count struct {
	free, limited, deliveries int
	latency                   *hdrhistogram.Histogram // free lanes, us
}

// line is a lane of the trial. Its message 0 is the probe.
type line struct {
	key     lane.Key
	limited bool
	phase   time.Duration // of its schedule
	next    time.Time     // the limit's
	started []bool
}

func newTrial(cfg *Config, c Case, series uint32, random *rand.Rand) *trial {
	t := &trial{
		cfg: cfg, how: c.How, slots: c.Threads, series: series, lifted: make(chan struct{}), empty: make(chan struct{}, 1),
		lines: make([]line, cfg.Lanes), count: count{latency: hdrhistogram.New(1, time.Hour.Microseconds(), 3)},
	}
	for i := range t.lines {
		t.lines[i] = line{
			key:     lane.Key{Tier: "sim", Type: "chat", Model: "lanes", Tenant: fmt.Sprint(i)},
			phase:   time.Duration(random.Float64() * float64(t.gap())),
			started: make([]bool, 1+t.each()),
		}
	}
	for _, i := range random.Perm(cfg.Lanes)[:c.Limited] {
		t.lines[i].limited = true
	}
	return t
}

func (t *trial) gap() time.Duration { return time.Duration(float64(time.Second) / t.cfg.Rate) }

// each is how many messages a lane gets after its probe.
func (t *trial) each() int { return int((t.cfg.Warm + t.cfg.Span) / t.gap()) }

// due is when message n of a lane is to be published.
func (t *trial) due(l *line, n int) time.Time {
	return t.begin.Add(l.phase + time.Duration(n-1)*t.gap())
}

// counts reports whether a moment lies between Warm and the end of Span.
func (t *trial) counts(at time.Time) bool {
	since := at.Sub(t.begin)
	return !t.begin.IsZero() && since >= t.cfg.Warm && since < t.cfg.Warm+t.cfg.Span
}

// run measures, then lets everything that is left through, also when it failed.
func (t *trial) run(ctx context.Context, b Broker) (Figures, error) {
	keys := make([]lane.Key, len(t.lines))
	for i := range t.lines {
		keys[i] = t.lines[i].key
	}
	consumer, err := b.Open(t.slots, keys)
	if err != nil {
		return Figures{}, err
	}
	consumer.Accept(func(lane.Key) bool { return true })
	consuming, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(consuming, t.handle) }()
	err = t.publishAll(ctx, b)
	close(t.lifted)
	if left := t.drained(context.WithoutCancel(ctx), drainWithin); left > 0 {
		err = errors.Join(err, fmt.Errorf("%d messages were not delivered within %v and stay in their lanes until those expire", left, drainWithin))
	}
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return Figures{}, err
	}
	return t.figures(), nil
}

// publishAll sends every lane its probe and, when all have arrived, the messages of
// its schedule, each at its time or as soon after it as the lane's last is through.
func (t *trial) publishAll(ctx context.Context, b Broker) error {
	all := func(within time.Duration, f func(ctx context.Context, lane int) error) error {
		ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("the broker is too slow: publishing took more than %v", within))
		defer cancel()
		group, ctx := errgroup.WithContext(ctx)
		for i := range t.lines {
			group.Go(func() error { return f(ctx, i) })
		}
		err := group.Wait()
		if err != nil && context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
			return context.Cause(ctx)
		}
		return err
	}
	if err := all(probeWithin, func(ctx context.Context, i int) error { return t.publish(ctx, b, i, 0) }); err != nil {
		return err
	}
	if left := t.drained(ctx, probeWithin); ctx.Err() != nil {
		return ctx.Err()
	} else if left > 0 {
		return fmt.Errorf("%d of %d lanes had no delivery within %v", left, len(t.lines), probeWithin)
	}
	t.mu.Lock()
	t.begin = time.Now()
	t.mu.Unlock()
	err := all(t.cfg.Warm+t.cfg.Span+late, func(ctx context.Context, i int) error {
		for n := 1; n <= t.each(); n++ {
			if err := waitUntil(ctx, nil, t.due(&t.lines[i], n)); err != nil {
				return err
			}
			if err := t.publish(ctx, b, i, n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return waitUntil(ctx, nil, t.begin.Add(t.cfg.Warm+t.cfg.Span))
}

// publish sends message n of a lane, to its end also when ctx ends meanwhile: what is
// on its way has to be drained. One that failed may come nevertheless, and is then
// only acknowledged.
func (t *trial) publish(ctx context.Context, b Broker, i, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	t.left++
	t.mu.Unlock()
	now := time.Now()
	err := b.Publish(context.WithoutCancel(ctx), &queue.Message{
		Version: queue.Version, ID: fmt.Sprintf("%08x%08x%016x", t.series, i, n), Lane: t.lines[i].key,
		Opened: now, Deadline: now.Add(time.Hour), Sequences: 1, Body: make([]byte, bodyBytes),
	})
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := &t.lines[i]; !l.started[n] {
		l.started[n] = true
		t.gone()
	}
	return fmt.Errorf("publish: %w", err)
}

// gone counts one message less; called with mu held.
func (t *trial) gone() {
	if t.left--; t.left == 0 {
		select {
		case t.empty <- struct{}{}:
		default:
		}
	}
}

// drained waits until nothing is left, at most within, and returns what is.
func (t *trial) drained(ctx context.Context, within time.Duration) int {
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		t.mu.Lock()
		left := t.left
		t.mu.Unlock()
		if left == 0 {
			return 0
		}
		select {
		case <-t.empty:
		case <-limit.C:
			return left
		case <-ctx.Done():
			return left
		}
	}
}

// handle is the queue's handler: it holds the limit and starts what is in it.
func (t *trial) handle(ctx context.Context, m *queue.Message, _ func()) queue.Result {
	t.mu.Lock()
	if t.counts(time.Now()) {
		t.deliveries++
	}
	t.mu.Unlock()
	var series uint32
	var i, n int
	if _, err := fmt.Sscanf(m.ID, "%08x%08x%016x", &series, &i, &n); err != nil || series != t.series || i >= len(t.lines) || n >= len(t.lines[i].started) {
		return queue.Ack() // nothing of ours
	}
	l := &t.lines[i]
	for {
		early := t.start(l, n)
		if early <= 0 {
			return queue.Ack()
		}
		if t.how == Suspend {
			return queue.Suspend(early)
		}
		if waitUntil(ctx, t.lifted, time.Now().Add(early)) != nil {
			return queue.Suspend(early)
		}
	}
}

// start starts message n of a lane, or says how much too early it is. A message that
// comes again is only acknowledged.
func (t *trial) start(l *line, n int) (early time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if l.started[n] {
		return 0
	}
	if early := l.next.Sub(now); l.limited && n > 0 && early > 0 && !t.isLifted() {
		return early
	}
	l.started[n], l.next = true, now.Add(t.cfg.Limit)
	t.gone()
	switch {
	case n == 0:
	case l.limited:
		if t.counts(now) {
			t.limited++
		}
	default:
		if t.counts(now) {
			t.free++
		}
		if due := t.due(l, n); t.counts(due) {
			_ = t.latency.RecordValue(now.Sub(due).Microseconds()) // an hour is beyond all bounds
		}
	}
	return 0
}

func (t *trial) isLifted() bool {
	select {
	case <-t.lifted:
		return true
	default:
		return false
	}
}

func (t *trial) figures() Figures {
	t.mu.Lock()
	defer t.mu.Unlock()
	limited := 0
	for i := range t.lines {
		if t.lines[i].limited {
			limited++
		}
	}
	per := func(n, lanes int) float64 { return float64(n) / t.cfg.Span.Seconds() / float64(max(lanes, 1)) }
	at := func(q float64) time.Duration { return time.Duration(t.latency.ValueAtQuantile(q)) * time.Microsecond }
	return Figures{
		P50: at(50), P99: at(99), Max: at(100),
		FreeRate: per(t.free, len(t.lines)-limited), LimitRate: per(t.limited, limited), Deliveries: per(t.deliveries, 1),
	}
}

// waitUntil returns at a moment, or before when early closes; an error is ctx's.
func waitUntil(ctx context.Context, early <-chan struct{}, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-early:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
