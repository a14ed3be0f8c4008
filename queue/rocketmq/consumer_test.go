package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"penstock/lane"
	"penstock/queue"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance(t, func(t *testing.T) *fleet { return newFleet(t, newProxy(t, proxyFaults{}).addr, nil) }, 10*time.Second, 300*time.Millisecond)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

// run runs a consumer of all lanes until the test ends; deliveries are counted by id.
func (f *fleet) run(t *testing.T, h func(m *queue.Message, n int) queue.Result) (c *Consumer, times func(id string) int) {
	t.Helper()
	c = f.consumer("n")
	c.Accept(func(lane.Key) bool { return true })
	var mu sync.Mutex
	seen := map[string]int{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
			mu.Lock()
			seen[m.ID]++
			n := seen[m.ID]
			mu.Unlock()
			return h(m, n)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return c, func(id string) int {
		mu.Lock()
		defer mu.Unlock()
		return seen[id]
	}
}

func (f *fleet) send(t *testing.T, id string) *queue.Message {
	t.Helper()
	m := &queue.Message{Version: queue.Version, ID: id, Lane: lane.Key{Tier: "t", Tenant: id}, Body: []byte(id)}
	if err := f.publish(t.Context(), m); err != nil {
		t.Fatalf("publish %s: %v", id, err)
	}
	return m
}

func twice(_ *queue.Message, n int) queue.Result {
	if n == 1 {
		return queue.Suspend(queue.MinSuspend)
	}
	return queue.Ack()
}

// TestUnorderedSettings: the library takes a Suspend for an acknowledgement when the
// proxy's settings say unordered. Ours never let it see that.
func TestUnorderedSettings(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{unordered: true})
	f := newFleet(t, p.addr, nil)
	_, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "the suspended message comes again", func() bool { return times("a") == 2 })
	eventually(t, "one acknowledgement", func() bool { return p.count("ack") == 1 })
}

// TestAckNeedsAHandler: whatever the library thinks, nothing is acknowledged on the
// wire that no handler acknowledged.
func TestAckNeedsAHandler(t *testing.T) {
	m, err := newConsumerMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(1, m)
	ack := &pb.AckMessageRequest{Entries: []*pb.AckMessageEntry{{MessageId: "1"}}}
	s.settle("1", false)
	if s.mayAck(ack) {
		t.Error("a suspended message may be acknowledged")
	}
	if why := s.dead(time.Now()); why == "" {
		t.Error("the client goes on after it tried")
	}
	s.settle("1", true)
	if !s.mayAck(ack) {
		t.Error("an acknowledged message may not be acknowledged")
	}
	if err := s.acked(ack, &pb.AckMessageResponse{Status: &pb.Status{Code: pb.Code_OK}}, nil); err != nil || s.mayAck(ack) {
		t.Errorf("it may be acknowledged a second time (%v)", err)
	}
}

func TestTelemetryIsMended(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{longPoll: 200 * time.Millisecond})
	f := newFleet(t, p.addr, nil)
	c, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "a delivery", func() bool { return times("a") == 2 })
	before := p.count("COMPLETE_ADD")
	p.cutTelemetry() // the proxy answers receives with an error until it has settings again
	f.send(t, "b")
	eventually(t, "a delivery after the cut", func() bool { return times("b") == 2 })
	eventually(t, "the whole set again", func() bool { return p.count("COMPLETE_ADD") > before })
	if n := testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureRebuild)); n != 0 {
		t.Errorf("the client was replaced %v times", n)
	}
}

func TestProxyRestart(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{})
	f := newFleet(t, p.addr, nil)
	c, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "a delivery", func() bool { return times("a") == 2 })
	p.restart(t)
	ready := time.Now()
	f.send(t, "b")
	eventually(t, "a delivery after the restart", func() bool { return times("b") == 2 })
	t.Logf("publish and delivery %v after the restart", time.Since(ready).Round(time.Millisecond))
	eventually(t, "readiness", func() bool { ok, _ := c.Ready(); return ok })
}

func TestComesUpWithTheProxy(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{})
	p.stop()
	f := newFleet(t, p.addr, func(c *Config) { c.PublishTimeout = 200 * time.Millisecond })
	c, times := f.run(t, twice)
	m := &queue.Message{Version: queue.Version, ID: "a", Lane: lane.Key{Tenant: "a"}}
	if err := f.publish(t.Context(), m); !errors.Is(err, queue.ErrAway) {
		t.Errorf("publish without a proxy = %v, want ErrAway", err)
	}
	if ok, why := c.Ready(); ok || why == "" {
		t.Errorf("the consumer is ready without a proxy (%q)", why)
	}
	if ok, why := f.producer.Ready(); ok || why == "" {
		t.Errorf("the producer is ready without a proxy (%q)", why)
	}
	p.serve(t, p.addr)
	eventually(t, "both ready", func() bool { a, _ := c.Ready(); b, _ := f.producer.Ready(); return a && b })
	f.send(t, "b")
	eventually(t, "a delivery", func() bool { return times("b") == 2 })
}

// TestLostLease: a Suspend whose lease is over is told to the library as done; it
// would repeat it every second for ever.
func TestLostLease(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{})
	f := newFleet(t, p.addr, nil)
	c, times := f.run(t, func(m *queue.Message, n int) queue.Result {
		if n == 1 {
			p.with(func() { p.lanes[lane.Name(f.cfg.Secret, m.Lane, 0)].until = time.Time{} }) // the lease is over
			time.Sleep(100 * time.Millisecond)                                                 // and it is delivered again
			return queue.Suspend(queue.MinSuspend)
		}
		return queue.Ack()
	})
	f.send(t, "a")
	eventually(t, "the second delivery", func() bool { return times("a") == 2 })
	eventually(t, "the loss counted", func() bool {
		return testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureLease)) == 1
	})
	time.Sleep(1200 * time.Millisecond) // the library's pause before it would repeat
	if n := p.count("suspend"); n != 1 {
		t.Errorf("%d Suspends on the wire, want 1", n)
	}
}

func TestOddMessages(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{})
	f := newFleet(t, p.addr, nil)
	c, times := f.run(t, func(m *queue.Message, n int) queue.Result {
		switch {
		case m.ID == "panics" && n == 1:
			panic("boom")
		case m.Version != queue.Version:
			return queue.Suspend(queue.MaxSuspend)
		}
		return queue.Ack()
	})
	f.send(t, "panics")
	strange := &queue.Message{Version: 99, ID: "strange", Lane: lane.Key{Tenant: "strange"}, Body: []byte("x")}
	if err := f.publish(t.Context(), strange); err != nil {
		t.Fatal(err)
	}
	for name, born := range map[string]time.Time{"young": time.Now(), "old": time.Now().Add(-time.Hour)} {
		key := lane.Key{Tenant: name}
		f.announce(key)
		topic := lane.Name(f.cfg.Secret, key, 0)
		_, err := p.SendMessage(t.Context(), &pb.SendMessageRequest{Messages: []*pb.Message{{
			Topic: &pb.Resource{Name: "penstock"}, Body: []byte("garbage"),
			SystemProperties: &pb.SystemProperties{MessageId: name, LiteTopic: &topic, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamp(born)},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	failures := func(cause string) float64 { return testutil.ToFloat64(c.metrics.failures.WithLabelValues(cause)) }
	eventually(t, "two unreadable messages", func() bool { return failures(failureMalformed) >= 2 })
	eventually(t, "the old one dropped, three suspended", func() bool { return p.count("ack") == 1 && p.count("suspend") == 3 })
	if times("panics") != 1 || times("strange") != 1 {
		t.Errorf("delivered %d and %d times, want once each", times("panics"), times("strange"))
	}
	if failures(failurePanic) != 1 || failures(failureVersion) != 1 {
		t.Errorf("%v panics and %v unknown versions counted, want 1 and 1", failures(failurePanic), failures(failureVersion))
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{quota: 10})
	var confirmed sync.Map
	f := newFleet(t, p.addr, func(c *Config) {
		c.Confirmed = func(keys []lane.Key) {
			for _, k := range keys {
				confirmed.Store(k, true)
			}
		}
	})
	f.width = 3
	c, _ := f.run(t, twice)
	for i := range 5 {
		f.announce(lane.Key{Tenant: fmt.Sprint(i)})
	}
	eventually(t, "three lanes of three shards", func() bool { return testutil.ToFloat64(c.metrics.topics) == 9 })
	n := 0
	confirmed.Range(func(any, any) bool { n++; return true })
	if n != 3 {
		t.Errorf("%d lanes confirmed, want 3", n)
	}
	if n := testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureSubscribe)); n != 0 {
		t.Errorf("%v calls refused", n)
	}
}

// TestPublishUntyped: a route read while the broker came back must not stop messages
// until the library reads it again.
func TestPublishUntyped(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{untyped: true})
	f := newFleet(t, p.addr, func(c *Config) { c.PublishTimeout = 2 * time.Second })
	f.send(t, "first")
}

func TestPublish(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{})
	f := newFleet(t, p.addr, func(c *Config) { c.PublishTimeout = 2 * time.Second })
	f.send(t, "first")
	for _, tc := range []struct {
		name    string
		answers []pb.Code
		body    int
		want    error
		sends   int
	}{
		{"a restart is waited for", []pb.Code{pb.Code_TOPIC_NOT_FOUND, pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, pb.Code_INTERNAL_SERVER_ERROR}, 1, nil, 4},
		{"a busy broker is asked again", []pb.Code{pb.Code_TOO_MANY_REQUESTS}, 1, nil, 2},
		{"a longer one is not", repeat(pb.Code_TOPIC_NOT_FOUND, 1000), 1, queue.ErrAway, -1},
		{"the broker's limit is lower", []pb.Code{pb.Code_MESSAGE_BODY_TOO_LARGE}, 1, queue.ErrTooLarge, 1},
		{"beyond our own", nil, MaxBody + 1, queue.ErrTooLarge, 0},
		{"the largest body", nil, MaxBody, nil, 1},
		{"too many lanes", []pb.Code{pb.Code_LITE_TOPIC_QUOTA_EXCEEDED}, 1, queue.ErrFull, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.with(func() { p.faults.sendStatus, p.calls["send"] = tc.answers, 0 })
			err := f.producer.Publish(t.Context(), &queue.Message{Version: 1, ID: "1", Body: make([]byte, tc.body)})
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("Publish = %v, want %v", err, tc.want)
			}
			if n := p.count("send"); tc.sends >= 0 && n != tc.sends {
				t.Errorf("%d sends, want %d", n, tc.sends)
			}
		})
	}
}

func repeat(c pb.Code, n int) []pb.Code {
	all := make([]pb.Code, n)
	for i := range all {
		all[i] = c
	}
	return all
}

// TestSDKLog holds that what the library logs comes here: warnings only, each place in
// its code once in a while, cut to a bound.
func TestSDKLog(t *testing.T) {
	cfg := DefaultConfig()
	if err := install(&cfg); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	sdkLog.log.Store(slog.New(slog.NewTextHandler(&b, nil)))
	pool := rmq.NewSimpleThreadPool("pool of the test", 1, 1)
	pool.Shutdown()
	pool.Submit(func() {}) // the library warns
	if !strings.Contains(b.String(), "pool of the test") {
		t.Fatalf("the library logs elsewhere, here only %q", b.String())
	}
	b.Reset()
	core := &sdkCore{said: map[string]said{}}
	core.log.Store(slog.New(slog.NewTextHandler(&b, nil)))
	log := zap.New(core, zap.AddCaller()).Sugar()
	for range 3 {
		log.Info("quiet")
		log.Error(strings.Repeat("loud ", 200))
	}
	if n := strings.Count(b.String(), "\n"); n != 1 || strings.Contains(b.String(), "quiet") || b.Len() > maxText+200 {
		t.Errorf("%d lines: %s", n, b.String())
	}
}
