package rocketmq

import (
	"context"
	"errors"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	innerMD "github.com/apache/rocketmq-clients/golang/v5/metadata"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// sessions finds the session of a call by its client id; transport is what every
// new connection is made with. Both are the process's, like the library's own
// variables that the first New takes over.
var (
	sessions  sync.Map // client id -> *session
	transport atomic.Pointer[credentials.TransportCredentials]
	takeOver  sync.Once
)

// dialWithin bounds one try to connect; the library holds a lock meanwhile.
const dialWithin = 2 * time.Second

// install puts our logger, credentials and interceptors under the library.
func install(cfg *Config) error {
	conf, err := cfg.tls()
	if err != nil {
		return err
	}
	creds := insecure.NewCredentials()
	if conf != nil {
		creds = credentials.NewTLS(conf)
	}
	transport.Store(&creds)
	takeOver.Do(func() {
		sdkLogger = zap.New(sdkLog, zap.AddCaller()).Sugar()
		dial := rmq.NewRpcClient
		rmq.NewRpcClient = func(target string, opts ...rmq.RpcClientOption) (rmq.RpcClient, error) {
			return dial(target, append(opts, rmq.WithRpcClientConnOption(
				rmq.WithZapLogger(zap.NewNop()), rmq.WithDialTimeout(dialWithin),
				rmq.WithDialOptions(
					grpc.WithTransportCredentials(*transport.Load()),
					grpc.WithConnectParams(grpc.ConnectParams{
						Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxPause},
						MinConnectTimeout: dialWithin,
					}),
					grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(MaxBody+1<<20), grpc.MaxCallRecvMsgSize(MaxBody+1<<20)),
					grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream),
				)))...)
		}
	})
	return nil
}

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
	counts   *consumerMetrics

	mu      sync.Mutex
	polls   map[*receive]bool // open long polls
	conns   map[*grpc.ClientConn]bool
	acks    map[string]int // message id -> acknowledgements the handler gave and the broker has not
	pending int            // results on their way to the broker
	topics  []string       // the whole subscription, for a complete synchronisation
	next    *change        // what the next partial one is to carry
}

// change is a set of LiteTopics to subscribe, or not any more.
type change struct {
	action pb.LiteSubscriptionAction
	topics []string
}

func newSession(slots int, counts *consumerMetrics) *session {
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

func sessionOf(ctx context.Context, cc *grpc.ClientConn) *session {
	md, _ := metadata.FromOutgoingContext(ctx)
	for _, id := range md.Get(innerMD.ClintID) {
		if v, ok := sessions.Load(id); ok {
			s := v.(*session)
			s.mu.Lock()
			s.conns[cc] = true
			s.mu.Unlock()
			return s
		}
	}
	return nil
}

// mended hides Unavailable from the library: it would close the connection under
// every other call. gRPC connects again by itself.
func mended(err error) error {
	if status.Code(err) == codes.Unavailable {
		return status.Error(codes.Aborted, "proxy not reachable: "+status.Convert(err).Message())
	}
	return err
}

func unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	s := sessionOf(ctx, cc)
	if s == nil {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	switch r := req.(type) {
	case *pb.AckMessageRequest:
		if !s.mayAck(r) {
			return status.Error(codes.FailedPrecondition, "not acknowledged by its handler")
		}
	case *pb.SyncLiteSubscriptionRequest:
		s.fill(r)
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil {
		s.heard.Store(time.Now().UnixNano())
	}
	switch r := req.(type) {
	case *pb.AckMessageRequest:
		err = s.acked(r, reply.(*pb.AckMessageResponse), err)
	case *pb.ChangeInvisibleDurationRequest:
		err = s.changed(r, reply.(*pb.ChangeInvisibleDurationResponse), err)
	case *pb.ForwardMessageToDeadLetterQueueRequest:
		s.release() // the library found it damaged; no handler saw it
	}
	return mended(err)
}

// mayAck holds that nothing is acknowledged that no handler acknowledged: the
// library takes a Suspend for an acknowledgement if it missed that it is ordered.
func (s *session) mayAck(r *pb.AckMessageRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range r.GetEntries() {
		if s.acks[e.GetMessageId()] == 0 {
			s.counts.failures.WithLabelValues(failureAck).Inc()
			s.flipped.Store(true)
			return false
		}
	}
	return true
}

// acked settles the books. A client that retires gives up what failed: the delivery
// comes again after its lease.
func (s *session) acked(r *pb.AckMessageRequest, reply *pb.AckMessageResponse, err error) error {
	code := reply.GetStatus().GetCode()
	if (err != nil || code != pb.Code_OK && code != pb.Code_INVALID_RECEIPT_HANDLE) && !s.retiring.Load() {
		return err // the library tries again every second
	}
	if err != nil || code != pb.Code_OK {
		s.counts.failures.WithLabelValues(failureLease).Inc()
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
	code := reply.GetStatus().GetCode()
	if code == pb.Code_INVALID_RECEIPT_HANDLE || s.retiring.Load() && (err != nil || code != pb.Code_OK) {
		s.counts.failures.WithLabelValues(failureLease).Inc()
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
		r.Action, r.LiteTopicSet = s.next.action, s.next.topics
		s.next = nil
	}
}

func stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s := sessionOf(ctx, cc)
	if s == nil {
		return open(ctx, desc, cc, method, opts...)
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(s.ctx, cancel)
	if method != pb.MessagingService_ReceiveMessage_FullMethodName {
		t := &telemetry{session: s, ctx: ctx, open: func() (grpc.ClientStream, error) { return open(ctx, desc, cc, method, opts...) }}
		return t, t.connect()
	}
	if err := s.admit(ctx); err != nil {
		cancel()
		return nil, err
	}
	cs, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		s.receivedBadly()
		return nil, mended(err)
	}
	r := &receive{ClientStream: cs, session: s, cancel: cancel}
	s.mu.Lock()
	s.polls[r] = true
	s.mu.Unlock()
	return r, nil
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
		s.fails.Add(1)
		s.failed.Store(time.Now().UnixNano())
		s.wake()
	}
}

func (s *session) wake() {
	select {
	case s.back <- struct{}{}:
	default:
	}
}

// receive is one long poll.
type receive struct {
	grpc.ClientStream
	session *session
	cancel  context.CancelFunc
	got     bool // a message: its handler gives the slot back
	bad     bool
	over    bool
	ended   bool // after cut, the library has been told
	cut     bool // by us; guarded by session.mu
}

func (r *receive) SendMsg(m any) error {
	if req, ok := m.(*pb.ReceiveMessageRequest); ok {
		req.BatchSize = 1
	}
	return r.ClientStream.SendMsg(m)
}

func (r *receive) RecvMsg(m any) error {
	err := r.ClientStream.RecvMsg(m)
	if err != nil {
		if r.finish(err) { // for the library it has ended as one without a message
			r.ended = true
			m.(*pb.ReceiveMessageResponse).Content = &pb.ReceiveMessageResponse_Status{Status: &pb.Status{Code: pb.Code_OK}}
			return nil
		}
		if r.ended {
			return io.EOF
		}
		return mended(err)
	}
	r.session.heard.Store(time.Now().UnixNano())
	reply := m.(*pb.ReceiveMessageResponse)
	if reply.GetMessage() != nil {
		r.got = true
	}
	switch st := reply.GetStatus(); st.GetCode() {
	case pb.Code_CODE_UNSPECIFIED, pb.Code_OK:
	case pb.Code_MESSAGE_NOT_FOUND:
		// The library does not count the end of a poll that it takes for failed, and
		// then waits for it when it stops.
		st.Code = pb.Code_OK
	default:
		r.bad = true
	}
	return nil
}

// finish does the accounts of an ended poll, once, and reports whether it was cut.
func (r *receive) finish(err error) bool {
	if r.over {
		return false
	}
	r.over = true
	r.cancel()
	r.session.mu.Lock()
	delete(r.session.polls, r)
	cut := r.cut
	r.session.mu.Unlock()
	failed := !cut && (r.bad || !errors.Is(err, io.EOF) && status.Code(err) != codes.DeadlineExceeded)
	switch {
	case failed:
		r.session.receivedBadly()
	case !r.got:
		r.session.release()
	}
	if !failed {
		r.session.fails.Store(0)
	}
	return cut
}

// telemetry is the stream the proxy knows a client by. Once settings have come it
// mends itself: the library would notice a lost one after five minutes.
type telemetry struct {
	grpc.ClientStream // replaced under mu
	session           *session
	ctx               context.Context
	open              func() (grpc.ClientStream, error)

	mu       sync.Mutex
	settings *pb.TelemetryCommand // as last sent
}

func (t *telemetry) connect() error {
	cs, err := t.open()
	if err != nil {
		return mended(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ClientStream = cs
	if t.settings != nil {
		return cs.SendMsg(t.settings)
	}
	return nil
}

func (t *telemetry) SendMsg(m any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, ok := m.(*pb.TelemetryCommand); ok && c.GetSettings() != nil {
		t.settings = c
	}
	err := t.ClientStream.SendMsg(m)
	if err != nil && t.session.ready.Load() {
		return nil // RecvMsg mends the stream and sends the settings
	}
	return mended(err)
}

func (t *telemetry) RecvMsg(m any) error {
	for {
		t.mu.Lock()
		cs := t.ClientStream
		t.mu.Unlock()
		err := cs.RecvMsg(m)
		if err == nil {
			if t.session.told(m.(*pb.TelemetryCommand)) {
				return nil
			}
			continue
		}
		if !t.session.ready.Load() || t.ctx.Err() != nil {
			return mended(err)
		}
		t.session.failed.Store(time.Now().UnixNano())
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, maxPause) {
			select {
			case <-time.After(pause):
			case <-t.ctx.Done():
				return t.ctx.Err()
			}
			if t.connect() == nil {
				break
			}
		}
	}
}

// told corrects what the proxy says, where the library would draw the wrong
// conclusion, and reports whether the library is to hear it: settings only once,
// since it takes them over while it reads them elsewhere.
func (s *session) told(c *pb.TelemetryCommand) bool {
	settings := c.GetSettings()
	if settings == nil {
		return true
	}
	s.heard.Store(time.Now().UnixNano())
	if p := settings.GetPublishing(); p != nil && settings.GetBackoffPolicy() != nil {
		settings.BackoffPolicy.MaxAttempts = 1 // Publish knows what is worth a retry
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
