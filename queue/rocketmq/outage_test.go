package rocketmq

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
	"penstock/queue/rocketmq/proxy/proxytest"
)

// TestBrokerNotFound: a proxy that delivers and does not find the broker for the answer
// calls the handle invalid. The answer is repeated, and the lane does not wait for its
// lease; polls go on meanwhile.
func TestBrokerNotFound(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{})
	f := newFleet(t, p.Addr, nil)
	away := func(is bool) { p.Change(func(f *proxytest.Faults) { f.Brokerless = is }) }
	c, times := f.run(t, func(m *queue.Message, n int) queue.Result {
		away(true)
		if m.ID == "first" && n == 1 {
			return queue.Suspend(queue.MinSuspend)
		}
		return queue.Ack()
	})
	began := time.Now()
	f.send(t, "first")
	for _, call := range []string{"suspend", "ack"} {
		eventually(t, call, func() bool { return p.Count(call) == 1 })
		away(false)
		eventually(t, call+" again", func() bool { return p.Count(call) == 2 })
	}
	eventually(t, "the lane at rest", func() bool { return p.Waiting() == 0 })
	if n, took := times("first"), time.Since(began); n != 2 || took >= proxy.Lease {
		t.Errorf("%d deliveries, at rest after %v; want 2 and no wait for the lease", n, took)
	}
	if n := testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureLease)); n != 0 {
		t.Errorf("%v leases counted as lost, want 0", n)
	}
}

// TestForgotten: a proxy that forgot the client and keeps its stream is told again who
// it is.
func TestForgotten(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{LongPoll: 200 * time.Millisecond})
	f := newFleet(t, p.Addr, nil)
	c, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "a delivery", func() bool { return times("a") == 2 })
	p.Forget()
	eventually(t, "a poll refused", func() bool { return p.Count("receive failed") > 0 })
	f.send(t, "b")
	eventually(t, "a delivery after it", func() bool { return times("b") == 2 })
	if n := testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureRebuild)); n != 0 {
		t.Errorf("the client was replaced %v times", n)
	}
}
