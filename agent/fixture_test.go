package agent

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"penstock/agent/attempt"
	"penstock/fleet"
	"penstock/lane"
	"penstock/queue"
	qmemory "penstock/queue/memory"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	rmemory "penstock/registry/memory"
	"penstock/response"
	bus "penstock/response/memory"
	"penstock/scheduler"
	"penstock/vllm/simengine"
	"penstock/vllm/vllmtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 10 * time.Second // for a condition that a test waits for
	mailbox  = "gateway"
)

// node is an agent with everything it needs in memory, and a gateway's mailbox.
type node struct {
	t      testing.TB
	vllm   *vllmtest.Engine // in newNode
	fake   *fakeEngine      // in newStage
	store  *store
	cfg    Config
	agent  *Agent
	queue  *qmemory.Queue
	reg    *rmemory.Registry
	bus    *bus.Bus
	prom   *prometheus.Registry
	ids    atomic.Uint64
	last   string // id of the message under test
	stop   func()
	done   chan error
	mu     sync.Mutex
	events map[string][]response.Event
	news   chan struct{} // closed and replaced at every event

	waiting []registry.Backlog // beside what the lanes have; set before run
	limit   func(lane.Key) int // of a lane; set before run
}

// newNode wires an agent to a simulated vLLM that serves model q; run starts it.
func newNode(t *testing.T, change ...func(*Config)) *node {
	t.Helper()
	engine := vllmtest.Start(t, vllmtest.WithBlocks(2049), vllmtest.WithConfig(func(c *simengine.Config) {
		c.Model, c.Engine.MaxModelLen, c.Engine.MaxSeqs, c.Engine.MaxBatchedTokens = "q", 8192, 256, 2048
		c.MeanOutput = 0
	}))
	n := wire(t, engine.URL(), change...)
	n.vllm = engine
	return n
}

// newStage wires an agent to an engine that does what the test says, for synctest.
func newStage(t *testing.T, change ...func(*Config)) *node {
	t.Helper()
	n := wire(t, "http://127.0.0.1:1", change...)
	n.fake = newFakeEngine(n)
	n.agent.engine = n.fake.upstream()
	n.agent.scrape = n.fake.scrape
	return n
}

func wire(t testing.TB, url string, change ...func(*Config)) *node {
	t.Helper()
	n := &node{t: t, bus: bus.New(), prom: prometheus.NewRegistry(), events: map[string][]response.Event{}, news: make(chan struct{}), done: make(chan error, 1), limit: func(lane.Key) int { return 0 }}
	n.cfg = DefaultConfig()
	n.cfg.Scheduler.Law = scheduler.Watermark // a gauge is all it takes to fill the engine
	n.cfg.Node = "node-1"
	n.cfg.SetEngine(url)
	for _, c := range change {
		c(&n.cfg)
	}
	var err error
	n.queue, err = qmemory.New(qmemory.DefaultConfig())
	check(t, err)
	rc := rmemory.DefaultConfig()
	rc.Terminal = func(id, attempt string, why reason.Reason) []byte {
		return response.Append(nil, &response.Event{ID: id, Attempt: attempt, Kind: response.Failed, Reason: why, Seq: 1})
	}
	n.reg, err = rmemory.New(rc, n.bus.Append, func(_, id, attempt string) { n.agent.Cancel(id, attempt) })
	check(t, err)
	n.store = &store{Records: n.reg}
	closeBox, err := n.bus.Open(mailbox, n.take)
	check(t, err)
	t.Cleanup(closeBox)
	n.agent, err = New(n.cfg, Deps{
		Records: n.store, Directory: n.reg, Consumer: n.queue.Consumer("node-1"), Append: n.bus.Append,
		Peers: func() []fleet.Row { return nil }, Backlog: n.backlog, LaneLimit: func(k lane.Key) int { return n.limit(k) }, Metrics: n.prom,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	check(t, err)
	return n
}

// backlog is that of the lanes, and of what tests add.
func (n *node) backlog(now time.Time) []registry.Backlog {
	return append(n.reg.Backlog(now), n.waiting...)
}

// run starts the agent and waits until it is ready.
func (n *node) run() *node {
	n.start()
	n.until("ready", func() bool { return n.agent.Health().Ready })
	return n
}

func (n *node) start() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { n.done <- n.agent.Run(ctx) }()
	n.stop = sync.OnceFunc(cancel)
	n.t.Cleanup(func() {
		n.stop()
		n.agent.core.each(func(r *run) { r.Cancel(attempt.ErrDrained) })
		select {
		case err := <-n.done:
			check(n.t, err)
		case <-time.After(patience):
			n.t.Error("Run does not return")
		}
	})
}

func (n *node) take(e response.Event) {
	e.Payload = bytes.Clone(e.Payload)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events[e.ID] = append(n.events[e.ID], e)
	close(n.news)
	n.news = make(chan struct{})
}

func (n *node) of(id string) []response.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]response.Event(nil), n.events[id]...)
}

// outcome waits for the terminal event of id.
func (n *node) outcome(id string) response.Event {
	n.t.Helper()
	return n.event(id, func(e response.Event) bool { return e.Kind.Terminal() })
}

func (n *node) event(id string, is func(response.Event) bool) response.Event {
	n.t.Helper()
	limit := time.After(patience)
	for {
		n.mu.Lock()
		news := n.news
		for _, e := range n.events[id] {
			if is(e) {
				n.mu.Unlock()
				return e
			}
		}
		n.mu.Unlock()
		select {
		case <-news:
		case <-limit:
			n.t.Fatalf("request %s: event did not come; got %+v", id, n.of(id))
		}
	}
}

func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit:
			n.t.Fatalf("not reached within %v: %s; state %+v", patience, what, n.agent.DebugState())
		}
	}
}

// message is a streamed completion of output tokens; change may alter it.
func (n *node) message(output int, change ...func(*queue.Message)) *queue.Message {
	m := &queue.Message{
		Version: queue.Version, ID: hexID(n.ids.Add(1)), Lane: lane.Key{Tier: "default", Type: "completion", Model: "q", Tenant: "t"},
		Path: "/v1/completions", Opened: time.Now(), Deadline: time.Now().Add(30 * time.Second),
		SLOTTFT: 2 * time.Second, PromptTokens: 10, ExpectedOut: output, MaxTokens: output, Sequences: 1, Stream: true, Reply: mailbox,
	}
	for _, c := range change {
		c(m)
	}
	m.Body = fmt.Appendf(nil, `{"model":"q","prompt":"0123456789012345678901234567890123456789","max_tokens":%d,"stream":%v}`, m.MaxTokens, m.Stream)
	return m
}

func plain(m *queue.Message) { m.Stream = false }

func tenant(name string) func(*queue.Message) {
	return func(m *queue.Message) { m.Lane.Tenant = name }
}

// open opens m's record, as a gateway does.
func (n *node) open(m *queue.Message) {
	n.t.Helper()
	_, err := n.reg.Open(context.Background(), registry.Request{
		ID: m.ID, Lane: m.Lane, Reply: m.Reply, Deadline: m.Deadline, Tokens: m.Tokens(), Bytes: len(m.Body), Limit: time.Hour,
		Limits: []quota.Limit{{Scope: quota.Tenant, Bucket: "t", Amount: 1 << 40, Per: time.Minute}},
	},
		registry.Drain{Engines: 1})
	check(n.t, err)
}

// send opens m's record and publishes it.
func (n *node) send(m *queue.Message) *queue.Message {
	n.t.Helper()
	n.open(m)
	check(n.t, n.queue.Publish(context.Background(), m))
	return m
}

// full sets the fake engine so that a big request waits for tokens that are about
// to come free: it is held.
func (n *node) full() { n.level(0.79) }

// big is a request that starts below a KV usage of 0.69 only.
func big(m *queue.Message) { m.PromptTokens = 15_000 }

// level sets the fake engine's KV usage and waits until it is seen.
func (n *node) level(kv float64) {
	n.t.Helper()
	n.fake.set(func(f *fakeEngine) { f.sample.Running, f.sample.KV = 4, kv })
	n.until("full", func() bool { return n.agent.State(time.Now()).View.KV == kv })
}

func hexID(n uint64) string {
	var b [16]byte
	for i := range 8 {
		b[7-i] = byte(n * 0x9e3779b97f4a7c15 >> (8 * i))
		b[15-i] = byte(n >> (8 * i))
	}
	return hex.EncodeToString(b[:])
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
