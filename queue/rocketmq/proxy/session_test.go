package proxy

import (
	"errors"
	"slices"
	"testing"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func counts() Counts {
	return Counts{AckRefused: prometheus.NewCounter(prometheus.CounterOpts{}), LeaseLost: prometheus.NewCounter(prometheus.CounterOpts{})}
}

// TestAckNeedsAHandler: whatever the library thinks, nothing is acknowledged on the
// wire that no handler acknowledged.
func TestAckNeedsAHandler(t *testing.T) {
	s := newSession(1, counts())
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
	if n := testutil.ToFloat64(s.counts.AckRefused); n != 1 {
		t.Errorf("%v refused acknowledgements counted, want 1", n)
	}
	if err := s.acked(ack, &pb.AckMessageResponse{Status: &pb.Status{Code: pb.Code_OK}}, nil); err != nil || s.mayAck(ack) {
		t.Errorf("it may be acknowledged a second time (%v)", err)
	}
}

func TestSessionDead(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		polled, heard time.Duration
		dead          bool
	}{
		"lively":         {time.Second, time.Second, false},
		"a long poll":    {25 * time.Second, 9 * time.Second, false},
		"no poll":        {silence + time.Second, time.Second, true},
		"a silent proxy": {time.Second, silence + time.Second, true},
	} {
		s := newSession(1, counts())
		s.polled.Store(now.Add(-tc.polled).UnixNano())
		s.heard.Store(now.Add(-tc.heard).UnixNano())
		if why := s.dead(now); (why != "") != tc.dead {
			t.Errorf("%s: dead = %q", name, why)
		}
	}
}

func TestFill(t *testing.T) {
	s := newSession(1, counts())
	s.topics = []string{"a", "b"}
	r := &pb.SyncLiteSubscriptionRequest{Action: pb.LiteSubscriptionAction_COMPLETE_ADD, LiteTopicSet: []string{"the library's"}}
	s.fill(r)
	if !slices.Equal(r.GetLiteTopicSet(), s.topics) {
		t.Errorf("the library's repetition carries %v", r.GetLiteTopicSet())
	}
}

// TestAssigned: the client keeps its queue while the proxy does not know it, twice where
// it has many slots.
func TestAssigned(t *testing.T) {
	okStatus := &pb.Status{Code: pb.Code_OK}
	many := newSession(manySlots, counts())
	defer many.end()
	reply := &pb.QueryAssignmentResponse{Status: okStatus, Assignments: []*pb.Assignment{{MessageQueue: &pb.MessageQueue{Id: 7}}}}
	if err := many.assigned(reply, nil); err != nil || len(reply.GetAssignments()) != 2 || reply.GetAssignments()[1].GetMessageQueue().GetId() != secondQueue {
		t.Errorf("%v queues of a client with many slots, error %v; want two", reply.GetAssignments(), err)
	}
	s := newSession(1, counts())
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
