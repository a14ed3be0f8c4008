package rocketmq

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	innerMD "github.com/apache/rocketmq-clients/golang/v5/metadata"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// proxy is a RocketMQ proxy and broker for one topic and group as far as lite push
// consumers and producers see it: a LiteTopic is first in first out, one un-acked
// message at a time, and comes again when its invisible time is over.
type proxy struct {
	pb.UnimplementedMessagingServiceServer
	addr   string // the same after a restart
	server *grpc.Server
	opts   []grpc.ServerOption

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever something happens
	lanes   map[string]*laneQueue
	clients map[string]*proxyClient
	seq     int
	calls   map[string]int // by method; "suspend" and "renew" apart
	faults  proxyFaults
}

type proxyFaults struct {
	untyped    bool // routes say that the topic has no type, as for a while after a restart
	unordered  bool // settings say fifo=false and lack a backoff policy
	quota      int32
	sendStatus []pb.Code // answers of the next sends
	receiveErr bool
	brokerless bool // it delivers, and does not find the broker for anything else, as for a while after a broker's restart
	longPoll   time.Duration
}

type laneQueue struct {
	waiting []*pb.Message
	until   time.Time // the head is taken until then
	handle  string
}

type proxyClient struct {
	topics   map[string]bool
	settings bool
	kill     chan struct{} // ends its telemetry
}

func newProxy(t testing.TB, faults proxyFaults, opts ...grpc.ServerOption) *proxy {
	t.Helper()
	p := &proxy{changed: make(chan struct{}), lanes: map[string]*laneQueue{}, clients: map[string]*proxyClient{}, calls: map[string]int{}, faults: faults, opts: opts}
	if p.faults.longPoll == 0 {
		p.faults.longPoll = 5 * time.Second
	}
	p.serve(t, "127.0.0.1:0")
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) serve(t testing.TB, addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if p.addr == "" {
		p.addr = listener.Addr().String()
	}
	server := grpc.NewServer(append(p.opts, grpc.MaxRecvMsgSize(8<<20), grpc.MaxSendMsgSize(8<<20))...)
	pb.RegisterMessagingServiceServer(server, p)
	p.server = server
	go func() { _ = server.Serve(listener) }()
}

func (p *proxy) stop() { p.server.Stop() }

// restart is a proxy killed and started again: it knows its clients no more.
func (p *proxy) restart(t testing.TB) {
	p.stop()
	p.mu.Lock()
	p.clients = map[string]*proxyClient{}
	p.mu.Unlock()
	p.serve(t, p.addr)
}

func (p *proxy) did() { close(p.changed); p.changed = make(chan struct{}) }

func (p *proxy) count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[name]
}

// waiting is how many messages are not acknowledged.
func (p *proxy) waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.lanes {
		n += len(q.waiting)
	}
	return n
}

func (p *proxy) with(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.did()
}

func (p *proxy) client(ctx context.Context) *proxyClient {
	md, _ := metadata.FromIncomingContext(ctx)
	id := strings.Join(md.Get(innerMD.ClintID), "")
	c := p.clients[id]
	if c == nil {
		c = &proxyClient{topics: map[string]bool{}, kill: make(chan struct{})}
		p.clients[id] = c
	}
	return c
}

var okStatus = &pb.Status{Code: pb.Code_OK}

func (p *proxy) queue(topic string) *pb.MessageQueue {
	addr, _ := net.ResolveTCPAddr("tcp", p.addr)
	return &pb.MessageQueue{
		Topic: &pb.Resource{Name: topic}, Id: -1, Permission: pb.Permission_READ_WRITE,
		Broker:             &pb.Broker{Name: "b", Endpoints: &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{{Host: addr.IP.String(), Port: int32(addr.Port)}}}},
		AcceptMessageTypes: p.types(),
	}
}

func (p *proxy) types() []pb.MessageType {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.untyped {
		return []pb.MessageType{pb.MessageType_MESSAGE_TYPE_UNSPECIFIED}
	}
	return []pb.MessageType{pb.MessageType_LITE}
}

func (p *proxy) QueryRoute(_ context.Context, r *pb.QueryRouteRequest) (*pb.QueryRouteResponse, error) {
	return &pb.QueryRouteResponse{Status: okStatus, MessageQueues: []*pb.MessageQueue{p.queue(r.GetTopic().GetName())}}, nil
}

func (p *proxy) QueryAssignment(_ context.Context, r *pb.QueryAssignmentRequest) (*pb.QueryAssignmentResponse, error) {
	if p.lacksBroker() {
		return &pb.QueryAssignmentResponse{Status: &pb.Status{Code: pb.Code_TOPIC_NOT_FOUND}}, nil
	}
	return &pb.QueryAssignmentResponse{Status: okStatus, Assignments: []*pb.Assignment{{MessageQueue: p.queue(r.GetTopic().GetName())}}}, nil
}

func (p *proxy) Heartbeat(context.Context, *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	return &pb.HeartbeatResponse{Status: okStatus}, nil
}

func (p *proxy) NotifyClientTermination(context.Context, *pb.NotifyClientTerminationRequest) (*pb.NotifyClientTerminationResponse, error) {
	return &pb.NotifyClientTerminationResponse{Status: okStatus}, nil
}

func (p *proxy) Telemetry(s pb.MessagingService_TelemetryServer) error {
	p.mu.Lock()
	c := p.client(s.Context())
	kill := c.kill
	p.mu.Unlock()
	in := make(chan *pb.TelemetryCommand)
	go func() {
		for {
			cmd, err := s.Recv()
			if err != nil {
				return
			}
			select {
			case in <- cmd:
			case <-s.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case <-s.Context().Done():
			return nil
		case <-kill:
			return status.Error(codes.Unavailable, "cut")
		case cmd := <-in:
			settings := cmd.GetSettings()
			if settings == nil {
				continue
			}
			p.mu.Lock()
			c.settings = true
			p.calls["settings"]++
			f := p.faults
			p.mu.Unlock()
			if sub := settings.GetSubscription(); sub != nil {
				ordered, batch := !f.unordered, int32(32)
				sub.Fifo, sub.ReceiveBatchSize, sub.LongPollingTimeout = &ordered, &batch, durationpb.New(f.longPoll)
				sub.LiteSubscriptionQuota = &f.quota
				if !f.unordered {
					settings.BackoffPolicy = &pb.RetryPolicy{MaxAttempts: 17, Strategy: &pb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &pb.CustomizedBackoff{Next: []*durationpb.Duration{durationpb.New(time.Second)}}}}
				}
			}
			if pub := settings.GetPublishing(); pub != nil {
				pub.MaxBodySize, pub.ValidateMessageType = 4<<20, true
			}
			if err := s.Send(&pb.TelemetryCommand{Status: okStatus, Command: &pb.TelemetryCommand_Settings{Settings: settings}}); err != nil {
				return err
			}
		}
	}
}

// cutTelemetry ends all telemetry streams; the proxy forgets the clients' settings.
func (p *proxy) cutTelemetry() {
	p.with(func() {
		for _, c := range p.clients {
			close(c.kill)
			c.kill, c.settings = make(chan struct{}), false
		}
	})
}

// forget loses the clients' settings without a word.
func (p *proxy) forget() {
	p.with(func() {
		for _, c := range p.clients {
			c.settings = false
		}
	})
}

func (p *proxy) SyncLiteSubscription(ctx context.Context, r *pb.SyncLiteSubscriptionRequest) (*pb.SyncLiteSubscriptionResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[r.GetAction().String()]++
	c := p.client(ctx)
	if r.GetAction() == pb.LiteSubscriptionAction_COMPLETE_ADD {
		c.topics = map[string]bool{}
	}
	for _, topic := range r.GetLiteTopicSet() {
		if r.GetAction() == pb.LiteSubscriptionAction_PARTIAL_REMOVE {
			delete(c.topics, topic)
		} else {
			c.topics[topic] = true
		}
	}
	p.did()
	if p.faults.quota > 0 && len(c.topics) > int(p.faults.quota) {
		return &pb.SyncLiteSubscriptionResponse{Status: &pb.Status{Code: pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED}}, nil
	}
	return &pb.SyncLiteSubscriptionResponse{Status: okStatus}, nil
}

func (p *proxy) SendMessage(_ context.Context, r *pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls["send"]++
	if len(p.faults.sendStatus) > 0 {
		code := p.faults.sendStatus[0]
		p.faults.sendStatus = p.faults.sendStatus[1:]
		return &pb.SendMessageResponse{Status: &pb.Status{Code: code, Message: code.String()}}, nil
	}
	m := r.GetMessages()[0]
	sys := m.GetSystemProperties()
	sys.BodyDigest = &pb.Digest{Type: pb.DigestType_CRC32, Checksum: fmt.Sprintf("%X", crc32.ChecksumIEEE(m.GetBody()))}
	q := p.lanes[sys.GetLiteTopic()]
	if q == nil {
		q = new(laneQueue)
		p.lanes[sys.GetLiteTopic()] = q
	}
	q.waiting = append(q.waiting, m)
	p.did()
	return &pb.SendMessageResponse{Status: okStatus, Entries: []*pb.SendResultEntry{{Status: okStatus, MessageId: sys.GetMessageId()}}}, nil
}

func (p *proxy) ReceiveMessage(r *pb.ReceiveMessageRequest, s pb.MessagingService_ReceiveMessageServer) error {
	answer := func(code pb.Code) error {
		return s.Send(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Status{Status: &pb.Status{Code: code}}})
	}
	end := time.After(r.GetLongPollingTimeout().AsDuration())
	for {
		p.mu.Lock()
		c := p.client(s.Context())
		if p.faults.receiveErr || !c.settings {
			p.calls["receive failed"]++
			p.mu.Unlock()
			return answer(pb.Code_INTERNAL_SERVER_ERROR)
		}
		batch, next := p.take(c, int(r.GetBatchSize()), r.GetInvisibleDuration().AsDuration())
		changed := p.changed
		p.mu.Unlock()
		if len(batch) > 0 {
			if err := answer(pb.Code_OK); err != nil {
				return err
			}
			for _, m := range batch {
				if err := s.Send(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Message{Message: m}}); err != nil {
					return err
				}
			}
			return nil
		}
		select {
		case <-changed:
		case <-time.After(time.Until(next)):
		case <-end:
			return answer(pb.Code_MESSAGE_NOT_FOUND)
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// take pops heads that are due for c; next is when one will be.
func (p *proxy) take(c *proxyClient, most int, invisible time.Duration) (batch []*pb.Message, next time.Time) {
	now := time.Now()
	next = now.Add(time.Hour)
	var names []string
	for name := range c.topics {
		if q := p.lanes[name]; q != nil && len(q.waiting) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		q := p.lanes[name]
		if now.Before(q.until) {
			if q.until.Before(next) {
				next = q.until
			}
			continue
		}
		if len(batch) == most {
			break
		}
		p.seq++
		q.until, q.handle = now.Add(invisible), fmt.Sprint("h", p.seq)
		m := q.waiting[0]
		handle, sys := q.handle, m.GetSystemProperties()
		attempt := sys.GetDeliveryAttempt() + 1
		sys.DeliveryAttempt = &attempt
		batch = append(batch, &pb.Message{Topic: m.GetTopic(), UserProperties: m.GetUserProperties(), Body: m.GetBody(), SystemProperties: &pb.SystemProperties{
			MessageId: sys.GetMessageId(), BodyDigest: sys.GetBodyDigest(), BodyEncoding: sys.GetBodyEncoding(), LiteTopic: sys.LiteTopic,
			BornTimestamp: sys.GetBornTimestamp(), BornHost: sys.GetBornHost(), ReceiptHandle: &handle, DeliveryAttempt: &attempt,
			StoreTimestamp: timestamppb.Now(),
		}})
	}
	return batch, next
}

// noBroker is what the proxy says of a handle whose broker it does not find.
var noBroker = &pb.Status{Code: pb.Code_INVALID_RECEIPT_HANDLE, Message: "org.apache.rocketmq.proxy.common.ProxyException: cannot find broker b"}

func (p *proxy) lacksBroker() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.brokerless
}

// held is the lane whose head is taken under a handle; nil: the handle is void.
func (p *proxy) held(topic, handle string) *laneQueue {
	if q := p.lanes[topic]; q != nil && q.handle == handle && time.Now().Before(q.until) {
		return q
	}
	return nil
}

func (p *proxy) AckMessage(_ context.Context, r *pb.AckMessageRequest) (*pb.AckMessageResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls["ack"]++
	e := r.GetEntries()[0]
	if p.faults.brokerless {
		p.did()
		return &pb.AckMessageResponse{Status: &pb.Status{Code: pb.Code_INVALID_RECEIPT_HANDLE}, Entries: []*pb.AckMessageResultEntry{{MessageId: e.GetMessageId(), Status: noBroker}}}, nil
	}
	q := p.held(e.GetLiteTopic(), e.GetReceiptHandle())
	if q == nil {
		return &pb.AckMessageResponse{Status: &pb.Status{Code: pb.Code_INVALID_RECEIPT_HANDLE}}, nil
	}
	q.waiting, q.until, q.handle = q.waiting[1:], time.Time{}, ""
	p.did()
	return &pb.AckMessageResponse{Status: okStatus}, nil
}

func (p *proxy) ChangeInvisibleDuration(_ context.Context, r *pb.ChangeInvisibleDurationRequest) (*pb.ChangeInvisibleDurationResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := r.GetInvisibleDuration().AsDuration()
	if d == Lease {
		p.calls["renew"]++
	} else {
		p.calls["suspend"]++
	}
	if p.faults.brokerless {
		p.did()
		return &pb.ChangeInvisibleDurationResponse{Status: noBroker}, nil
	}
	q := p.held(r.GetLiteTopic(), r.GetReceiptHandle())
	if q == nil {
		return &pb.ChangeInvisibleDurationResponse{Status: &pb.Status{Code: pb.Code_INVALID_RECEIPT_HANDLE}}, nil
	}
	p.seq++
	q.until, q.handle = time.Now().Add(d), fmt.Sprint("h", p.seq)
	p.did()
	return &pb.ChangeInvisibleDurationResponse{Status: okStatus, ReceiptHandle: q.handle}, nil
}
