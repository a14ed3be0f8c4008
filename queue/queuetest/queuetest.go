// Package queuetest is the contract of package queue as tests: every
// implementation passes Run.
package queuetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// Consumer is what an implementation gives to an agent.
type Consumer interface {
	Accept(match func(lane.Key) bool)
	Run(ctx context.Context, h queue.Handler) error
}

// Harness is one empty queue under test.
type Harness struct {
	Publish  func(ctx context.Context, m *queue.Message) error
	Consumer func(node string) Consumer
	Close    func() // later Publish: ErrClosed
}

// Spec says what is under test and where its promises may differ.
type Spec struct {
	// Open returns an empty queue. It cleans up with t.Cleanup.
	Open func(t *testing.T) Harness
	// In runs a case; synctest.Test for a queue in memory. Nil runs it as it is.
	In func(t *testing.T, run func(t *testing.T))

	LaneRequests int           // bound of a lane in Open's queue; 0: bounded elsewhere
	Concurrency  int           // handlers of one consumer in Open's queue; 0: no limit
	StartedFrees bool          // started() lets the lane's next message out
	Lag          time.Duration // longest time until a delivery that is due
	Quiet        time.Duration // no delivery for so long: none comes
}

// Run runs the suite, each case on a queue of its own.
func Run(t *testing.T, spec Spec) {
	if spec.In == nil {
		spec.In = func(t *testing.T, run func(t *testing.T)) { run(t) }
	}
	for _, c := range []struct {
		name string
		run  func(r *rig)
	}{
		{"a message arrives whole", arrivesWhole},
		{"a lane is first in first out", fifo},
		{"one of a lane is undecided at a time", oneAtATime},
		{"a suspended head comes back in its place", suspendKeepsPlace},
		{"other lanes do not notice a suspended one", suspendLeavesOthers},
		{"a suspended message holds no slot", suspendHoldsNoSlot},
		{"concurrency is bounded", concurrency},
		{"started lets the next one out", started},
		{"a started message that is suspended goes first again", startedThenSuspended},
		{"what a stopped consumer held comes again", consumerStops},
		{"run waits for its handlers", runWaits},
		{"accept nothing drains", acceptNothing},
		{"lanes go to who accepts them", acceptMatches},
		{"a suspended head goes to whoever is left", suspendMovesOn},
		{"a lane is bounded", bounds},
		{"publish refuses when it must", publishRefuses},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec.In(t, func(t *testing.T) {
				r := &rig{T: t, spec: spec, queue: spec.Open(t), deliveries: make(chan delivery)}
				defer r.stopAll()
				c.run(r)
			})
		})
	}
}

// rig drives one case: handlers report here and wait for the test's answer.
type rig struct {
	*testing.T
	spec       Spec
	queue      Harness
	deliveries chan delivery
	stops      []func()
	published  int
}

type delivery struct {
	*queue.Message
	node    string
	ctx     context.Context
	at      time.Time
	started func()
	answer  chan<- queue.Result
}

// key names a lane of this case.
func key(name string) lane.Key {
	return lane.Key{Tier: "default", Type: "chat", Model: "model-" + name, Tenant: "tenant-" + name}
}

func anyLane(lane.Key) bool { return true }

func only(name string) func(lane.Key) bool {
	want := key(name)
	return func(k lane.Key) bool { return k == want }
}

// publish puts a message into the lane called name; its body is name and the count
// of messages so far.
func (r *rig) publish(name string) *queue.Message {
	r.Helper()
	r.published++
	m := &queue.Message{
		Version: queue.Version, ID: fmt.Sprintf("%032x", r.published), Lane: key(name),
		Deadline: time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond), Sequences: 1,
		Body: fmt.Appendf(nil, "%s %d", name, r.published),
	}
	if err := r.queue.Publish(r.Context(), m); err != nil {
		r.Fatalf("publish %s: %v", m.Body, err)
	}
	return m
}

// consume runs a consumer whose deliveries come out of next, until stop or the end
// of the case. A handler whose context ends gives its message back.
func (r *rig) consume(node string, match func(lane.Key) bool) (c Consumer, stop func()) {
	return r.handle(node, match, func(ctx context.Context, m *queue.Message, started func()) queue.Result {
		answer := make(chan queue.Result, 1)
		select {
		case r.deliveries <- delivery{m, node, ctx, time.Now(), started, answer}:
		case <-ctx.Done():
			return queue.Suspend(0)
		}
		select {
		case result := <-answer:
			return result
		case <-ctx.Done():
			return queue.Suspend(0)
		}
	})
}

func (r *rig) handle(node string, match func(lane.Key) bool, h queue.Handler) (c Consumer, stop func()) {
	c = r.queue.Consumer(node)
	c.Accept(match)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, h) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.Errorf("consumer %s: Run = %v, want nil", node, err)
		}
	}
	r.stops = append(r.stops, stop)
	return c, stop
}

func (r *rig) stopAll() {
	for _, stop := range r.stops {
		stop()
	}
}

// next is the next delivery, whichever it is.
func (r *rig) next() delivery {
	r.Helper()
	return r.nextWithin(r.spec.Lag)
}

func (r *rig) nextWithin(limit time.Duration) delivery {
	r.Helper()
	select {
	case d := <-r.deliveries:
		return d
	case <-time.After(limit):
		r.Fatalf("no delivery within %v", limit)
		return delivery{}
	}
}

// expect is the next delivery, which has to be m.
func (r *rig) expect(m *queue.Message) delivery {
	r.Helper()
	return r.expectAfter(0, m)
}

// expectAfter is the next delivery, which has to be m, suspended for pause.
func (r *rig) expectAfter(pause time.Duration, m *queue.Message) delivery {
	r.Helper()
	d := r.nextWithin(pause + r.spec.Lag)
	if d.ID != m.ID {
		r.Fatalf("delivered %q, want %q", d.Body, m.Body)
	}
	return d
}

// quiet holds that nothing is delivered.
func (r *rig) quiet() {
	r.Helper()
	select {
	case d := <-r.deliveries:
		r.Fatalf("delivered %q to %s, want nothing", d.Body, d.node)
	case <-time.After(r.spec.Quiet):
	}
}

func (d delivery) ack()                        { d.answer <- queue.Ack() }
func (d delivery) suspend(pause time.Duration) { d.answer <- queue.Suspend(pause) }
