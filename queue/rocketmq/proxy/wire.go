package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	innerMD "github.com/apache/rocketmq-clients/golang/v5/metadata"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
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
	creds, err := cfg.transport()
	if err != nil {
		return err
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
	case *pb.QueryAssignmentRequest:
		err = s.assigned(reply.(*pb.QueryAssignmentResponse), err)
	case *pb.ForwardMessageToDeadLetterQueueRequest:
		s.release() // the library found it damaged; no handler saw it
	}
	return mended(err)
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
		s.mu.Lock()
		s.stream = t
		s.mu.Unlock()
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
