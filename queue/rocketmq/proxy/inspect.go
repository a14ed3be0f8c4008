package proxy

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	innerMD "github.com/apache/rocketmq-clients/golang/v5/metadata"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Report is what a proxy shows of a topic and a group through its gRPC face. The
// topic's TTL and the group's lite.sub.client.max.event.cnt are not among it. What
// follows a question that was refused is not asked.
type Report struct {
	Route     Answer
	Types     []string // message types the topic takes: "LITE" alone for a parent
	Queues    int      // receive loops of each agent
	Brokers   []string
	Addresses []string // where the proxy sends its clients, HOST:PORT

	Group    Answer
	Ordered  bool
	Batch    int // messages of one receive
	Attempts int // deliveries before a message goes to the dead letters; the group's -r and one
	Quota    int // lanes one agent may subscribe; 0 = not told

	Bind Answer // to the subscription of one LiteTopic nobody publishes to, taken back at once
}

// Inspect asks the proxy of cfg about its topic and group, as a consumer that
// receives nothing and leaves nothing. ctx bounds all of it; an error says that cfg
// cannot be used. The doctor calls it.
func Inspect(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	i, end, err := newInspection(cfg)
	if err != nil {
		return Report{}, err
	}
	defer end()
	var r Report
	if i.route(ctx, &r); r.Route.OK() {
		if i.group(ctx, &r); r.Group.OK() {
			i.bind(ctx, &r)
		}
	}
	return r, nil
}

// reach is nil when the proxy answers for the topic, and a consumer for the group;
// else it says what to do. The library asks the same when it starts, leaks goroutines
// with every start that fails, and does not say what is wrong with a certificate.
func reach(ctx context.Context, cfg Config, consumer bool) error {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	i, end, err := newInspection(cfg)
	if err != nil {
		return err
	}
	defer end()
	var r Report
	if i.route(ctx, &r); consumer && r.Route.OK() {
		i.group(ctx, &r)
		return r.Group.err(cfg.Endpoint)
	}
	return r.Route.err(cfg.Endpoint)
}

// inspection is one client of the proxy, by its id.
type inspection struct {
	cfg   Config
	proxy pb.MessagingServiceClient
	id    string
}

func newInspection(cfg Config) (i *inspection, end func(), err error) {
	creds, err := cfg.transport()
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient(cfg.Endpoint, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, nil, fmt.Errorf("rocketmq: Endpoint %q: %w", cfg.Endpoint, err)
	}
	return &inspection{cfg, pb.NewMessagingServiceClient(conn), "penstock-doctor@" + rand.Text()}, func() { _ = conn.Close() }, nil
}

func (i *inspection) topic() *pb.Resource    { return &pb.Resource{Name: i.cfg.Topic} }
func (i *inspection) resource() *pb.Resource { return &pb.Resource{Name: i.cfg.Group} }

// endpoint is the address as the protocol has it; Validate has seen that it splits.
func (i *inspection) endpoint() *pb.Endpoints {
	host, service, _ := net.SplitHostPort(i.cfg.Endpoint)
	port, _ := strconv.Atoi(service)
	scheme := pb.AddressScheme_DOMAIN_NAME
	if ip := net.ParseIP(host); ip.To4() != nil {
		scheme = pb.AddressScheme_IPv4
	} else if ip != nil {
		scheme = pb.AddressScheme_IPv6
	}
	return &pb.Endpoints{Scheme: scheme, Addresses: []*pb.Address{{Host: host, Port: int32(port)}}}
}

// signed adds what the proxy wants to know of every call.
func (i *inspection) signed(ctx context.Context) context.Context {
	now := time.Now().UTC().Format("20060102T150405Z")
	pairs := []string{
		innerMD.LanguageKey, innerMD.LanguageValue, innerMD.ProtocolKey, innerMD.ProtocolValue, innerMD.VersionKey, innerMD.VersionValue,
		innerMD.RequestID, rand.Text(), innerMD.ClintID, i.id, innerMD.NameSpace, "", innerMD.DateTime, now,
	}
	if i.cfg.AccessKey != "" {
		mac := hmac.New(sha1.New, []byte(i.cfg.SecretKey))
		mac.Write([]byte(now))
		pairs = append(pairs, innerMD.Authorization, fmt.Sprintf("%s %s=%s//%s, %s=%s, %s=%s", innerMD.EncryptHeader, innerMD.Credential, i.cfg.AccessKey,
			innerMD.Rocketmq, innerMD.SignedHeaders, innerMD.DateTime, innerMD.Signature, hex.EncodeToString(mac.Sum(nil))))
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

func (i *inspection) route(ctx context.Context, r *Report) {
	got, err := i.proxy.QueryRoute(i.signed(ctx), &pb.QueryRouteRequest{Topic: i.topic(), Endpoints: i.endpoint()})
	r.Route = answer(got.GetStatus(), err)
	for _, q := range got.GetMessageQueues() {
		if q.GetPermission() == pb.Permission_READ || q.GetPermission() == pb.Permission_READ_WRITE {
			r.Queues++
		}
		for _, t := range q.GetAcceptMessageTypes() {
			r.Types = append(r.Types, t.String())
		}
		r.Brokers = append(r.Brokers, q.GetBroker().GetName())
		for _, a := range q.GetBroker().GetEndpoints().GetAddresses() {
			r.Addresses = append(r.Addresses, net.JoinHostPort(a.GetHost(), strconv.Itoa(int(a.GetPort()))))
		}
	}
	for _, list := range []*[]string{&r.Types, &r.Brokers, &r.Addresses} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
}

// group says what we are and reads what the proxy answers with.
func (i *inspection) group(ctx context.Context, r *Report) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	kind := pb.ClientType_LITE_PUSH_CONSUMER
	stream, err := i.proxy.Telemetry(i.signed(ctx))
	if err == nil {
		err = stream.Send(&pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: &pb.Settings{
			ClientType: &kind, AccessPoint: i.endpoint(),
			UserAgent: &pb.UA{Language: pb.Language_GOLANG, Version: innerMD.VersionValue},
			PubSub: &pb.Settings_Subscription{Subscription: &pb.Subscription{
				Group:         i.resource(),
				Subscriptions: []*pb.SubscriptionEntry{{Topic: i.topic(), Expression: &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: "*"}}},
			}},
		}}})
	}
	for err == nil {
		var said *pb.TelemetryCommand
		if said, err = stream.Recv(); err == nil && (said.GetSettings() != nil || said.GetStatus().GetCode() != pb.Code_OK) {
			r.Group = answer(said.GetStatus(), nil)
			sub := said.GetSettings().GetSubscription()
			r.Ordered, r.Batch, r.Quota = sub.GetFifo(), int(sub.GetReceiveBatchSize()), int(sub.GetLiteSubscriptionQuota())
			r.Attempts = int(said.GetSettings().GetBackoffPolicy().GetMaxAttempts())
			return
		}
	}
	r.Group = answer(nil, err)
}

// bind subscribes one lane, since an empty set would make us a taker of everything in
// a group that needs no subscriptions.
func (i *inspection) bind(ctx context.Context, r *Report) {
	kind := pb.ClientType_LITE_PUSH_CONSUMER
	beat, err := i.proxy.Heartbeat(i.signed(ctx), &pb.HeartbeatRequest{Group: i.resource(), ClientType: kind})
	if r.Bind = answer(beat.GetStatus(), err); !r.Bind.OK() {
		return
	}
	defer func() {
		_, _ = i.proxy.NotifyClientTermination(i.signed(ctx), &pb.NotifyClientTerminationRequest{Group: i.resource()})
	}()
	lane := []string{"doctor-" + rand.Text()}
	sync := func(action pb.LiteSubscriptionAction) Answer {
		got, err := i.proxy.SyncLiteSubscription(i.signed(ctx), &pb.SyncLiteSubscriptionRequest{Action: action, Topic: i.topic(), Group: i.resource(), LiteTopicSet: lane})
		return answer(got.GetStatus(), err)
	}
	if r.Bind = sync(pb.LiteSubscriptionAction_PARTIAL_ADD); r.Bind.OK() {
		sync(pb.LiteSubscriptionAction_PARTIAL_REMOVE)
	}
}
