// Package proxytest is a RocketMQ proxy and broker for one topic and group, as far as
// lite push consumers, producers and inspections see them, with the faults of real ones.
package proxytest

import (
	"cmp"
	"net"
	"sync"
	"testing"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
)

// Proxy serves on a port of 127.0.0.1: a LiteTopic is first in first out, one un-acked
// message at a time, and comes again when its invisible time is over. It is safe for
// concurrent use.
type Proxy struct {
	Addr   string // HOST:PORT, the same after a restart
	server *grpc.Server
	opts   []grpc.ServerOption

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever something happens
	lanes   map[string]*laneQueue
	clients map[string]*proxyClient
	seq     int
	lease   time.Duration  // invisible time that receives ask for; a change to it is a renewal
	calls   map[string]int // as Count has them
	faults  Faults
}

// Faults is what is wrong; the zero value is a proxy where nothing is.
type Faults struct {
	Untyped    bool          // routes say that the topic has no type, as for a while after a restart
	Unordered  bool          // settings say fifo=false and lack a backoff policy
	Quota      int32         // LiteTopics one client may subscribe; 0 = no bound
	SendStatus []pb.Code     // answers of the next sends
	Brokerless bool          // it delivers, and does not find the broker for anything else, as for a while after a broker's restart
	LongPoll   time.Duration // 0 = 5 s
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

// New returns a proxy that serves until the test ends.
func New(t testing.TB, faults Faults, opts ...grpc.ServerOption) *Proxy {
	t.Helper()
	p := &Proxy{changed: make(chan struct{}), lanes: map[string]*laneQueue{}, clients: map[string]*proxyClient{}, calls: map[string]int{}, faults: faults, opts: opts}
	if p.faults.LongPoll == 0 {
		p.faults.LongPoll = 5 * time.Second
	}
	p.Start(t)
	t.Cleanup(p.Stop)
	return p
}

// Start serves again after Stop.
func (p *Proxy) Start(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", cmp.Or(p.Addr, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Addr == "" {
		p.Addr = listener.Addr().String()
	}
	server := grpc.NewServer(append(p.opts, grpc.MaxRecvMsgSize(8<<20), grpc.MaxSendMsgSize(8<<20))...)
	pb.RegisterMessagingServiceServer(server, calls{Proxy: p})
	p.server = server
	go func() { _ = server.Serve(listener) }()
}

// Stop ends all connections. The clients, and what waits, are known after it still.
func (p *Proxy) Stop() { p.server.Stop() }

// Restart is a proxy killed and started again: it knows its clients no more.
func (p *Proxy) Restart(t testing.TB) {
	p.Stop()
	p.mu.Lock()
	p.clients = map[string]*proxyClient{}
	p.mu.Unlock()
	p.Start(t)
}

func (p *Proxy) did() { close(p.changed); p.changed = make(chan struct{}) }

// Count is how many calls there were: "send", "ack", "suspend", "renew", "settings",
// "receive failed", and subscriptions by their action, such as "PARTIAL_ADD".
func (p *Proxy) Count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[name]
}

// Waiting is how many messages are not acknowledged.
func (p *Proxy) Waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.lanes {
		n += len(q.waiting)
	}
	return n
}

// Change changes what is wrong.
func (p *Proxy) Change(f func(*Faults)) { p.with(func() { f(&p.faults) }) }

// Put appends a message to its LiteTopic, as somebody else's Send would.
func (p *Proxy) Put(m *pb.Message) { p.with(func() { p.put(m) }) }

// Expire ends the lease of a LiteTopic that has one.
func (p *Proxy) Expire(topic string) { p.with(func() { p.lanes[topic].until = time.Time{} }) }

func (p *Proxy) with(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.did()
}

// CutTelemetry ends all telemetry streams; the proxy forgets the clients' settings.
func (p *Proxy) CutTelemetry() {
	p.with(func() {
		for _, c := range p.clients {
			close(c.kill)
			c.kill, c.settings = make(chan struct{}), false
		}
	})
}

// Forget loses the clients' settings without a word.
func (p *Proxy) Forget() {
	p.with(func() {
		for _, c := range p.clients {
			c.settings = false
		}
	})
}
