package proxytest

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"time"

	innerMD "github.com/apache/rocketmq-clients/golang/v5/metadata"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// calls is the gRPC face of a Proxy.
type calls struct {
	pb.UnimplementedMessagingServiceServer
	*Proxy
}

func (p *Proxy) client(ctx context.Context) *proxyClient {
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

func (p *Proxy) queue(topic string) *pb.MessageQueue {
	addr, _ := net.ResolveTCPAddr("tcp", p.Addr)
	return &pb.MessageQueue{
		Topic: &pb.Resource{Name: topic}, Id: -1, Permission: pb.Permission_READ_WRITE,
		Broker:             &pb.Broker{Name: "b", Endpoints: &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{{Host: addr.IP.String(), Port: int32(addr.Port)}}}},
		AcceptMessageTypes: p.types(),
	}
}

func (p *Proxy) types() []pb.MessageType {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.Untyped {
		return []pb.MessageType{pb.MessageType_MESSAGE_TYPE_UNSPECIFIED}
	}
	return []pb.MessageType{pb.MessageType_LITE}
}

func (p calls) QueryRoute(_ context.Context, r *pb.QueryRouteRequest) (*pb.QueryRouteResponse, error) {
	return &pb.QueryRouteResponse{Status: okStatus, MessageQueues: []*pb.MessageQueue{p.queue(r.GetTopic().GetName())}}, nil
}

func (p calls) QueryAssignment(_ context.Context, r *pb.QueryAssignmentRequest) (*pb.QueryAssignmentResponse, error) {
	if p.lacksBroker() {
		return &pb.QueryAssignmentResponse{Status: &pb.Status{Code: pb.Code_TOPIC_NOT_FOUND}}, nil
	}
	return &pb.QueryAssignmentResponse{Status: okStatus, Assignments: []*pb.Assignment{{MessageQueue: p.queue(r.GetTopic().GetName())}}}, nil
}

func (p calls) Heartbeat(context.Context, *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	return &pb.HeartbeatResponse{Status: okStatus}, nil
}

func (p calls) NotifyClientTermination(context.Context, *pb.NotifyClientTerminationRequest) (*pb.NotifyClientTerminationResponse, error) {
	return &pb.NotifyClientTerminationResponse{Status: okStatus}, nil
}

func (p calls) Telemetry(s pb.MessagingService_TelemetryServer) error {
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
				ordered, batch := !f.Unordered, int32(32)
				sub.Fifo, sub.ReceiveBatchSize, sub.LongPollingTimeout = &ordered, &batch, durationpb.New(f.LongPoll)
				sub.LiteSubscriptionQuota = &f.Quota
				if !f.Unordered {
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

func (p calls) SyncLiteSubscription(ctx context.Context, r *pb.SyncLiteSubscriptionRequest) (*pb.SyncLiteSubscriptionResponse, error) {
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
	if p.faults.Quota > 0 && len(c.topics) > int(p.faults.Quota) {
		return &pb.SyncLiteSubscriptionResponse{Status: &pb.Status{Code: pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED}}, nil
	}
	return &pb.SyncLiteSubscriptionResponse{Status: okStatus}, nil
}

func (p calls) SendMessage(_ context.Context, r *pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls["send"]++
	if len(p.faults.SendStatus) > 0 {
		code := p.faults.SendStatus[0]
		p.faults.SendStatus = p.faults.SendStatus[1:]
		return &pb.SendMessageResponse{Status: &pb.Status{Code: code, Message: code.String()}}, nil
	}
	m := r.GetMessages()[0]
	p.put(m)
	return &pb.SendMessageResponse{Status: okStatus, Entries: []*pb.SendResultEntry{{Status: okStatus, MessageId: m.GetSystemProperties().GetMessageId()}}}, nil
}

// put appends m to its LiteTopic.
func (p *Proxy) put(m *pb.Message) {
	sys := m.GetSystemProperties()
	sys.BodyDigest = &pb.Digest{Type: pb.DigestType_CRC32, Checksum: fmt.Sprintf("%X", crc32.ChecksumIEEE(m.GetBody()))}
	q := p.lanes[sys.GetLiteTopic()]
	if q == nil {
		q = new(laneQueue)
		p.lanes[sys.GetLiteTopic()] = q
	}
	q.waiting = append(q.waiting, m)
	p.did()
}

func (p calls) ReceiveMessage(r *pb.ReceiveMessageRequest, s pb.MessagingService_ReceiveMessageServer) error {
	answer := func(code pb.Code) error {
		return s.Send(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Status{Status: &pb.Status{Code: code}}})
	}
	end := time.After(r.GetLongPollingTimeout().AsDuration())
	for {
		p.mu.Lock()
		c := p.client(s.Context())
		if !c.settings {
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
func (p *Proxy) take(c *proxyClient, most int, invisible time.Duration) (batch []*pb.Message, next time.Time) {
	now := time.Now()
	next, p.lease = now.Add(time.Hour), invisible
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

func (p *Proxy) lacksBroker() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.Brokerless
}

// held is the lane whose head is taken under a handle; nil: the handle is void.
func (p *Proxy) held(topic, handle string) *laneQueue {
	if q := p.lanes[topic]; q != nil && q.handle == handle && time.Now().Before(q.until) {
		return q
	}
	return nil
}

func (p calls) AckMessage(_ context.Context, r *pb.AckMessageRequest) (*pb.AckMessageResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls["ack"]++
	e := r.GetEntries()[0]
	if p.faults.Brokerless {
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

func (p calls) ChangeInvisibleDuration(_ context.Context, r *pb.ChangeInvisibleDurationRequest) (*pb.ChangeInvisibleDurationResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := r.GetInvisibleDuration().AsDuration()
	if d == p.lease {
		p.calls["renew"]++
	} else {
		p.calls["suspend"]++
	}
	if p.faults.Brokerless {
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
