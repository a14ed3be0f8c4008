package proxy

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// session is one client of the library as seen on the wire. It mends what the
// library does not: see DESIGN.md.
type session struct {
	id       string
	client   reflect.Value   // the library's
	ctx      context.Context // ends with the client; open streams end with it
	end      context.CancelFunc
	slots    chan struct{} // one token per delivery that may run; nil for a producer
	ready    atomic.Bool   // settings have come: broken streams are mended from here on
	closing  chan struct{} // closed: no long poll begins
	stopping chan struct{} // closed: the library stops, waiting polls fail
	retiring atomic.Bool   // no call is retried any more
	flipped  atomic.Bool   // the library would have acknowledged a Suspend
	quota    atomic.Int32  // subscriptions the group allows; 0 = not told
	fails    atomic.Int32  // receives that failed in a row
	failed   atomic.Int64  // when one last did, unix ns; 0 = never
	heard    atomic.Int64  // when the proxy last answered anything, unix ns
	polled   atomic.Int64  // when the last receive began, unix ns
	back     chan struct{} // size 1: the proxy or the broker is back, subscribe again
	counts   Counts

	mu      sync.Mutex
	polls   map[*receive]bool // open long polls
	conns   map[*grpc.ClientConn]bool
	acks    map[string]int   // message id -> acknowledgements the handler gave and the broker has not
	pending int              // results on their way to the broker
	topics  []string         // the whole subscription, for a complete synchronisation
	next    *Change          // what the next partial one is to carry
	queues  []*pb.Assignment // what the client polls, as last told; nil = not yet
	stream  *telemetry       // the newest; nil = not yet
}

// newSession is of a client with slots deliveries at most; 0 = a producer, which counts
// nothing.
func newSession(slots int, counts Counts) *session {
	s := &session{closing: make(chan struct{}), stopping: make(chan struct{}), back: make(chan struct{}, 1), counts: counts, polls: map[*receive]bool{}, conns: map[*grpc.ClientConn]bool{}, acks: map[string]int{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	if slots > 0 {
		s.slots = make(chan struct{}, slots)
	}
	s.heard.Store(time.Now().UnixNano())
	s.polled.Store(time.Now().UnixNano())
	return s
}

// enter makes s the session of a producer or consumer of the library that has not
// started. Its client id is in a field that is not exported.
func (s *session) enter(client any) error {
	s.client = reflect.Indirect(reflect.ValueOf(client))
	if v := s.client.FieldByName("defaultPushConsumer"); v.IsValid() {
		s.client = v.Elem()
	}
	if v := s.client.FieldByName("cli"); v.IsValid() {
		s.client = v.Elem()
		if v = s.client.FieldByName("clientID"); v.IsValid() {
			s.id = v.String()
			sessions.Store(s.id, s)
			return nil
		}
	}
	return errors.New("rocketmq: this version of the client library keeps its client id elsewhere")
}

// leave ends what the library leaves running: its connections, and four timers that
// wait for a channel nobody closes.
func (s *session) leave() {
	s.end()
	sessions.Delete(s.id)
	if m := s.client.FieldByName("clientManager"); m.IsValid() && !m.IsNil() {
		if done := m.Elem().Elem().FieldByName("done"); done.IsValid() {
			reflect.NewAt(done.Type(), unsafe.Pointer(done.UnsafeAddr())).Elem().Close()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for cc := range s.conns {
		_ = cc.Close()
	}
}

// mayAck holds that nothing is acknowledged that no handler acknowledged: the
// library takes a Suspend for an acknowledgement if it missed that it is ordered.
func (s *session) mayAck(r *pb.AckMessageRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range r.GetEntries() {
		if s.acks[e.GetMessageId()] == 0 {
			s.counts.AckRefused.Inc()
			s.flipped.Store(true)
			return false
		}
	}
	return true
}

// acked settles the books. A client that retires gives up what failed: the delivery
// comes again after its lease.
func (s *session) acked(r *pb.AckMessageRequest, reply *pb.AckMessageResponse, err error) error {
	for _, e := range reply.GetEntries() {
		unbroken(reply.GetStatus(), e.GetStatus())
	}
	code := reply.GetStatus().GetCode()
	if (err != nil || code != pb.Code_OK && code != pb.Code_INVALID_RECEIPT_HANDLE) && !s.retiring.Load() {
		return err // the library tries again every second
	}
	if err != nil || code != pb.Code_OK {
		s.counts.LeaseLost.Inc()
		reply.Status = &pb.Status{Code: pb.Code_OK}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range r.GetEntries() {
		id := e.GetMessageId()
		if s.acks[id]--; s.acks[id] <= 0 {
			delete(s.acks, id)
		}
		s.pending--
	}
	return nil
}

// changed masks a handle that is not valid any more: the library would repeat the
// call for ever. A Suspend that does not arrive comes again after its lease.
func (s *session) changed(r *pb.ChangeInvisibleDurationRequest, reply *pb.ChangeInvisibleDurationResponse, err error) error {
	unbroken(reply.GetStatus(), reply.GetStatus())
	code := reply.GetStatus().GetCode()
	if code == pb.Code_INVALID_RECEIPT_HANDLE || s.retiring.Load() && (err != nil || code != pb.Code_OK) {
		s.counts.LeaseLost.Inc()
		reply.Status, reply.ReceiptHandle = &pb.Status{Code: pb.Code_OK}, r.GetReceiptHandle()
		err = nil
	}
	if err == nil && reply.GetStatus().GetCode() == pb.Code_OK && r.GetInvisibleDuration().AsDuration() != Lease {
		s.mu.Lock()
		s.pending-- // a Suspend; a renewal is for Lease, which no Suspend is
		s.mu.Unlock()
	}
	return err
}

// unbroken corrects a status where why says that the proxy does not find the broker
// of a handle, which it calls invalid as well: for some seconds after a broker's restart
// it does not, while it receives already. The handle is good, and the call to be tried
// again; taken for lost, its lane would wait for the end of the lease.
func unbroken(st, why *pb.Status) {
	if why.GetCode() == pb.Code_INVALID_RECEIPT_HANDLE && strings.Contains(why.GetMessage(), "cannot find broker") {
		st.Code = pb.Code_INTERNAL_SERVER_ERROR
	}
}

const (
	// secondQueue is a queue's second name: the library has one poll under way for each
	// queue, and of a queue the proxy looks only at its broker.
	secondQueue = -2
	// manySlots is from when on a client polls twice. Each poll that waits takes a slot.
	manySlots = 8
)

// assigned keeps the client's queue where the proxy cannot name it: without one the
// library ends its polls, and looks again only after 5 s. It doubles it, so that one
// delivery is on its way while another one is taken.
func (s *session) assigned(reply *pb.QueryAssignmentResponse, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && reply.GetStatus().GetCode() == pb.Code_OK && len(reply.GetAssignments()) > 0 {
		s.queues = reply.GetAssignments()
		if cap(s.slots) >= manySlots {
			for _, a := range reply.GetAssignments() {
				again := proto.Clone(a).(*pb.Assignment)
				again.MessageQueue.Id = secondQueue
				s.queues = append(s.queues, again)
			}
		}
	} else if s.queues == nil {
		return err
	}
	reply.Status, reply.Assignments = &pb.Status{Code: pb.Code_OK}, s.queues
	return nil
}

// settle notes a handler's result before the library sends it.
func (s *session) settle(id string, ack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending++
	if ack {
		s.acks[id]++
	}
}

// results is how many results are on their way.
func (s *session) results() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// fill puts our set into a request of the library: it can subscribe one LiteTopic
// at a time only, and repeats its own set every 30 s.
func (s *session) fill(r *pb.SyncLiteSubscriptionRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetAction() == pb.LiteSubscriptionAction_COMPLETE_ADD {
		r.LiteTopicSet = s.topics
		return
	}
	if s.next != nil {
		r.Action, r.LiteTopicSet = s.next.Action, s.next.Topics
		s.next = nil
	}
}

// cutPolls ends the open long polls: the library's stop would wait for them.
func (s *session) cutPolls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.polls {
		r.cut = true
		r.cancel()
	}
}

// admit waits until a delivery may run, and after a failure a little longer: the
// library would come again after 20 ms.
func (s *session) admit(ctx context.Context) error {
	if n := s.fails.Load(); n > 0 {
		wait(ctx, min(25*time.Millisecond<<min(n, 10), maxPause))
	}
	defer func() { s.polled.Store(time.Now().UnixNano()) }() // also when all are busy: the loop is alive
	select {
	case <-s.closing:
		select {
		case <-s.stopping:
		case <-ctx.Done():
		}
		return errClosing
	default:
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-s.stopping:
		return errClosing
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errClosing = status.Error(codes.Canceled, "the consumer stops")

// release frees the slot of a delivery, or of a receive that brought none.
func (s *session) release() {
	select {
	case <-s.slots:
	default: // a second batch message; cannot be with a batch of one
	}
}

func (s *session) receivedBadly() {
	s.release()
	if s.ctx.Err() == nil {
		s.failed.Store(time.Now().UnixNano())
		if s.fails.Add(1) > 1 {
			s.introduce()
		}
		s.wake()
	}
}

// introduce sends the client's settings once more. While the broker is away a proxy cannot
// register the client, after two minutes it forgets it without a word, and then refuses
// its polls.
func (s *session) introduce() {
	s.mu.Lock()
	t := s.stream
	s.mu.Unlock()
	if t != nil {
		t.again()
	}
}

func (s *session) wake() {
	select {
	case s.back <- struct{}{}:
	default:
	}
}

// told corrects what the proxy says, where the library would draw the wrong
// conclusion, and reports whether the library is to hear it: settings only once,
// since it takes them over while it reads them elsewhere.
func (s *session) told(c *pb.TelemetryCommand) bool {
	if c.GetNotifyUnsubscribeLiteCommand() != nil {
		s.wake() // the set is ours; and before its start the library would crash
		return false
	}
	settings := c.GetSettings()
	if settings == nil {
		return true
	}
	s.heard.Store(time.Now().UnixNano())
	if p := settings.GetPublishing(); p != nil {
		// The broker checks the type itself. The library would check it against a route it
		// keeps for 30 s, which after a restart may say that the topic has no type.
		p.ValidateMessageType = false
		if settings.GetBackoffPolicy() != nil {
			settings.BackoffPolicy.MaxAttempts = 1 // Publish knows what is worth a retry
		}
	}
	if sub := settings.GetSubscription(); sub != nil {
		ordered, one := true, int32(1)
		sub.Fifo, sub.ReceiveBatchSize = &ordered, &one
		s.quota.Store(sub.GetLiteSubscriptionQuota())
		if settings.GetBackoffPolicy() == nil { // without it the library does not apply the rest
			settings.BackoffPolicy = &pb.RetryPolicy{MaxAttempts: 1, Strategy: &pb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &pb.CustomizedBackoff{}}}
		}
	}
	settings.Metric = nil // ours are Prometheus's
	if s.ready.Swap(true) {
		s.wake() // a new stream, or news: subscribe again
		return false
	}
	return true
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
