package rocketmq

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/timestamppb"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy/proxytest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance(t, func(t *testing.T) *fleet { return newFleet(t, proxytest.New(t, proxytest.Faults{}).Addr, nil) }, 10*time.Second, 300*time.Millisecond)
}

// TestUnorderedSettings: the library takes a Suspend for an acknowledgement when the
// proxy's settings say unordered. Ours never let it see that.
func TestUnorderedSettings(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{Unordered: true})
	f := newFleet(t, p.Addr, nil)
	_, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "the suspended message comes again", func() bool { return times("a") == 2 })
	eventually(t, "one acknowledgement", func() bool { return p.Count("ack") == 1 })
}

func TestTelemetryIsMended(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{LongPoll: 200 * time.Millisecond})
	f := newFleet(t, p.Addr, nil)
	c, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "a delivery", func() bool { return times("a") == 2 })
	before := p.Count("COMPLETE_ADD")
	p.CutTelemetry() // the proxy answers receives with an error until it has settings again
	f.send(t, "b")
	eventually(t, "a delivery after the cut", func() bool { return times("b") == 2 })
	eventually(t, "the whole set again", func() bool { return p.Count("COMPLETE_ADD") > before })
	if n := testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureRebuild)); n != 0 {
		t.Errorf("the client was replaced %v times", n)
	}
}

func TestProxyRestart(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{})
	f := newFleet(t, p.Addr, nil)
	c, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "a delivery", func() bool { return times("a") == 2 })
	p.Restart(t)
	ready := time.Now()
	f.send(t, "b")
	eventually(t, "a delivery after the restart", func() bool { return times("b") == 2 })
	t.Logf("publish and delivery %v after the restart", time.Since(ready).Round(time.Millisecond))
	eventually(t, "readiness", func() bool { ok, _ := c.Ready(); return ok })
}

func TestComesUpWithTheProxy(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{})
	p.Stop()
	f := newFleet(t, p.Addr, func(c *Config) { c.PublishTimeout = 200 * time.Millisecond })
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
	p.Start(t)
	eventually(t, "both ready", func() bool { a, _ := c.Ready(); b, _ := f.producer.Ready(); return a && b })
	f.send(t, "b")
	eventually(t, "a delivery", func() bool { return times("b") == 2 })
}

// TestLostLease: a Suspend whose lease is over is told to the library as done; it
// would repeat it every second for ever.
func TestLostLease(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{})
	f := newFleet(t, p.Addr, nil)
	c, times := f.run(t, func(m *queue.Message, n int) queue.Result {
		if n == 1 {
			p.Expire(lane.Name(f.cfg.Secret, m.Lane, 0)) // the lease is over
			time.Sleep(100 * time.Millisecond)           // and it is delivered again
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
	if n := p.Count("suspend"); n != 1 {
		t.Errorf("%d Suspends on the wire, want 1", n)
	}
}

func TestOddMessages(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{})
	f := newFleet(t, p.Addr, nil)
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
		p.Put(&pb.Message{
			Topic: &pb.Resource{Name: "penstock"}, Body: []byte("garbage"),
			SystemProperties: &pb.SystemProperties{MessageId: name, LiteTopic: &topic, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamppb.New(born)},
		})
	}
	failures := func(cause string) float64 { return testutil.ToFloat64(c.metrics.failures.WithLabelValues(cause)) }
	eventually(t, "two unreadable messages", func() bool { return failures(failureMalformed) >= 2 })
	eventually(t, "the old one dropped, three suspended", func() bool { return p.Count("ack") == 1 && p.Count("suspend") == 3 })
	if times("panics") != 1 || times("strange") != 1 {
		t.Errorf("delivered %d and %d times, want once each", times("panics"), times("strange"))
	}
	if failures(failurePanic) != 1 || failures(failureVersion) != 1 {
		t.Errorf("%v panics and %v unknown versions counted, want 1 and 1", failures(failurePanic), failures(failureVersion))
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{Quota: 10})
	var confirmed sync.Map
	f := newFleet(t, p.Addr, func(c *Config) {
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
