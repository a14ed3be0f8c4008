package rocketmq

import (
	"errors"
	"testing"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/queue"
)

// TestBrokerNotFound: a proxy that delivers and does not find the broker for the answer
// calls the handle invalid. The answer is repeated, and the lane does not wait for its
// lease; polls go on meanwhile.
func TestBrokerNotFound(t *testing.T) {
	t.Parallel()
	p := newProxy(t, proxyFaults{})
	f := newFleet(t, p.addr, nil)
	away := func(is bool) { p.with(func() { p.faults.brokerless = is }) }
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
		eventually(t, call, func() bool { return p.count(call) == 1 })
		away(false)
		eventually(t, call+" again", func() bool { return p.count(call) == 2 })
	}
	eventually(t, "the lane at rest", func() bool { return p.waiting() == 0 })
	if n, took := times("first"), time.Since(began); n != 2 || took >= Lease {
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
	p := newProxy(t, proxyFaults{longPoll: 200 * time.Millisecond})
	f := newFleet(t, p.addr, nil)
	c, times := f.run(t, twice)
	f.send(t, "a")
	eventually(t, "a delivery", func() bool { return times("a") == 2 })
	p.forget()
	eventually(t, "a poll refused", func() bool { return p.count("receive failed") > 0 })
	f.send(t, "b")
	eventually(t, "a delivery after it", func() bool { return times("b") == 2 })
	if n := testutil.ToFloat64(c.metrics.failures.WithLabelValues(failureRebuild)); n != 0 {
		t.Errorf("the client was replaced %v times", n)
	}
}

// TestAssigned: the client keeps its queue while the proxy does not know it, twice where
// it has many slots.
func TestAssigned(t *testing.T) {
	many := newSession(manySlots, nil)
	defer many.end()
	reply := &pb.QueryAssignmentResponse{Status: okStatus, Assignments: []*pb.Assignment{{MessageQueue: &pb.MessageQueue{Id: 7}}}}
	if err := many.assigned(reply, nil); err != nil || len(reply.GetAssignments()) != 2 || reply.GetAssignments()[1].GetMessageQueue().GetId() != secondQueue {
		t.Errorf("%v queues of a client with many slots, error %v; want two", reply.GetAssignments(), err)
	}
	s := newSession(1, nil)
	defer s.end()
	queue := []*pb.Assignment{{MessageQueue: &pb.MessageQueue{Id: 7}}}
	failed := errors.New("away")
	for _, tc := range []struct {
		name  string
		reply *pb.QueryAssignmentResponse
		err   error
		want  int // queues
		fails bool
	}{
		{"away at first", &pb.QueryAssignmentResponse{}, failed, 0, true},
		{"unknown at first", &pb.QueryAssignmentResponse{Status: &pb.Status{Code: pb.Code_TOPIC_NOT_FOUND}}, nil, 0, false},
		{"told", &pb.QueryAssignmentResponse{Status: okStatus, Assignments: queue}, nil, 1, false},
		{"unknown", &pb.QueryAssignmentResponse{Status: &pb.Status{Code: pb.Code_TOPIC_NOT_FOUND}}, nil, 1, false},
		{"none", &pb.QueryAssignmentResponse{Status: okStatus}, nil, 1, false},
		{"away", &pb.QueryAssignmentResponse{}, failed, 1, false},
	} {
		err := s.assigned(tc.reply, tc.err)
		if got := len(tc.reply.GetAssignments()); got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %d queues, error %v; want %d, an error %t", tc.name, got, err, tc.want, tc.fails)
		}
	}
}
