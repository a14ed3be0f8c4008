package control

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"penstock/agent/state"
	"penstock/fleet"
	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
	"penstock/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second // for a condition that a test waits for

// fake is an agent whose state the test sets.
type fake struct {
	mu     sync.Mutex // guards all below
	state  state.State
	runs   map[string]state.Run
	listen []func()
	ending bool
}

// newFake has not seen its engine yet.
func newFake(node string) *fake {
	return &fake{runs: map[string]state.Run{}, state: state.State{Node: node, Condition: "starting", Gate: "starting", Why: "starting"}}
}

// up is ready and serves model q.
func (f *fake) up() *fake {
	f.set(func(f *fake) {
		f.state.Ready, f.state.Models, f.state.Condition, f.state.Gate, f.state.Why = true, []string{"q"}, "ok", "ok", ""
		f.state.View = scheduler.View{Condition: reason.OK, Gate: reason.OK, KVTokens: 1000, Freeness: 400}
		f.state.Startable = 800
	})
	return f
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	change(f)
	listen := f.listen
	f.mu.Unlock()
	for _, tell := range listen {
		tell()
	}
}

func (f *fake) State(time.Time) state.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state
	s.Running = len(f.runs)
	return s
}

func (f *fake) Attempt(_ time.Time, id string) (state.Run, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run, ok := f.runs[id]
	return run, ok
}

func (f *fake) Listen(tell func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listen = append(f.listen, tell)
}

func (f *fake) Cancel(id, _ string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.runs[id]
	delete(f.runs, id)
	return ok
}

func (f *fake) Pause() (running int) {
	f.set(func(f *fake) {
		f.state.Draining, f.state.Ready, f.state.Condition = true, false, "draining"
		running = len(f.runs)
	})
	return running
}

func (f *fake) Resume() (was bool, err error) {
	f.mu.Lock()
	was = f.state.Draining
	ending := f.ending
	f.mu.Unlock()
	if ending {
		return false, errors.New("it is shutting down")
	}
	if was {
		f.up()
		f.set(func(f *fake) { f.state.Draining = false })
	}
	return was, nil
}

// door is a Server under test, and the store it asks.
type door struct {
	t    *testing.T
	grpc *Server
	addr string
	logs *syncBuffer

	engines []registry.Engine
	rows    []fleet.Row
	backlog []registry.Backlog
	longest []registry.LaneBacklog
	away    error // of Longest
	record  registry.Record
}

// wire makes a server for agents; it does not serve yet.
func wire(t *testing.T, cfg Config, agents ...Agent) *door {
	t.Helper()
	d := &door{t: t, logs: &syncBuffer{}}
	var err error
	d.grpc, err = New(cfg, Deps{
		Agents: agents, Width: 2, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(d.logs, nil)),
		Engines: func(context.Context) ([]registry.Engine, error) { return d.engines, nil },
		Peers:   func() []fleet.Row { return d.rows },
		Lookup:  func(context.Context, string) (registry.Record, error) { return d.record, nil },
		Backlog: func(time.Time) []registry.Backlog { return d.backlog },
		Limits:  func(lane.Key) (int, float64) { return 0, 0 },
		Longest: func(_ context.Context, n int) ([]registry.LaneBacklog, int, error) {
			return d.longest[:min(n, len(d.longest))], len(d.longest), d.away
		},
	})
	check(t, err)
	return d
}

// serve runs a server for agents until the test ends.
func serve(t *testing.T, cfg Config, agents ...Agent) *door {
	t.Helper()
	d := wire(t, cfg, agents...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	d.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.grpc.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
	})
	return d
}

// dial connects in plain text, or as creds say.
func (d *door) dial(creds ...credentials.TransportCredentials) *grpc.ClientConn {
	d.t.Helper()
	conn, err := grpc.NewClient(d.addr, grpc.WithTransportCredentials(append(creds, insecure.NewCredentials())[0]))
	check(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
