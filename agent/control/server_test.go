package control

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"penstock/agent/state"
	"penstock/fleet"
	"penstock/lane"
	penstockv1 "penstock/proto/penstock/v1"
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

// TestGRPCHealth: readiness, models and liveness, as the agents change.
func TestGRPCHealth(t *testing.T) {
	t.Parallel()
	one, two := newFake("node-1"), newFake("node-2")
	d := serve(t, Config{}, one, two)
	client := healthpb.NewHealthClient(d.dial())
	status := func(service string) string {
		r, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			return err.Error()
		}
		return r.Status.String()
	}
	for _, tc := range [][2]string{{"", "NOT_SERVING"}, {Liveness, "SERVING"}, {"q", "NotFound"}} {
		if got := status(tc[0]); !strings.Contains(got, tc[1]) {
			t.Errorf("before the first sample: Check(%q): got %s, want %s", tc[0], got, tc[1])
		}
	}
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: ""})
	check(t, err)
	next := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		r, err := watch.Recv()
		check(t, err)
		if r.Status != want {
			t.Errorf("Watch: got %v, want %v", r.Status, want)
		}
	}
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	one.up()
	next(healthpb.HealthCheckResponse_SERVING)
	if got := status("q"); got != "SERVING" {
		t.Errorf("Check(q): got %s, want SERVING", got)
	}
	one.Pause()
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	if got := status("q"); got != "NOT_SERVING" {
		t.Errorf("Check(q) while draining: got %s, want NOT_SERVING", got)
	}
	two.up()
	next(healthpb.HealthCheckResponse_SERVING)
	d.grpc.Drain()
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	if got := status(Liveness); got != "SERVING" {
		t.Errorf("Check(liveness) of a process that ends: got %s, want SERVING", got)
	}
}

// TestGRPCState: one engine from start to drain and back, as a watcher sees it.
func TestGRPCState(t *testing.T) {
	t.Parallel()
	f := newFake("node-1")
	d := serve(t, Config{}, f)
	client := penstockv1.NewAgentServiceClient(d.dial())
	get := func() *penstockv1.EngineState {
		t.Helper()
		r, err := client.GetState(t.Context(), &penstockv1.GetStateRequest{})
		check(t, err)
		if len(r.Engines) != 1 {
			t.Fatalf("GetState: got %d engines, want 1", len(r.Engines))
		}
		return r.Engines[0]
	}
	if s := get(); s.Condition != "starting" || s.Ready || s.Why == "" {
		t.Errorf("before the first sample: got %v, want starting, and why", s)
	}
	watch, err := client.WatchState(t.Context(), &penstockv1.WatchStateRequest{Node: "node-1"})
	check(t, err)
	until := func(what string, is func(*penstockv1.EngineState) bool) {
		t.Helper()
		for {
			r, err := watch.Recv()
			check(t, err)
			if is(r.Engines[0]) {
				return
			}
		}
	}
	f.up()
	until("ready", func(s *penstockv1.EngineState) bool { return s.Ready && s.Gate == "ok" && s.FreeTokens == 400 })
	if s := get(); s.Condition != "ok" || s.Why != "" || s.KvTokens != 1000 || !slices.Equal(s.Models, []string{"q"}) || !s.Local {
		t.Errorf("ready: got %v", s)
	}
	f.set(func(f *fake) {
		f.state.Gate, f.state.View.Gate, f.state.Shut = "kv_high", reason.KVHigh, "kv 94 % >= 92 %"
	})
	until("full", func(s *penstockv1.EngineState) bool {
		return s.Why == "kv 94 % >= 92 %" && s.Ready && s.FreeTokens == 0
	})
	f.up()
	const id = "0123456789abcdef0123456789abcdef"
	f.set(func(f *fake) { f.runs[id] = state.Run{ID: id, Attempt: "a1", Age: 3, Silent: 1, Relayed: true} })
	until("running", func(s *penstockv1.EngineState) bool { return s.InflightRequests == 1 })

	drained, err := client.Drain(t.Context(), &penstockv1.DrainRequest{})
	check(t, err)
	if drained.InflightRequests != 1 {
		t.Errorf("Drain: got %v, want 1 in flight", drained)
	}
	until("draining", func(s *penstockv1.EngineState) bool { return s.Condition == "draining" && !s.Ready })

	d.record = registry.Record{State: registry.Streaming, Owner: "node-1", Attempt: "a1", Tries: 1, Model: "q"}
	request, err := client.GetRequest(t.Context(), &penstockv1.GetRequestRequest{Id: id})
	check(t, err)
	if r := request; r.State != "streaming" || r.Owner != "node-1" || r.Tries != 1 || r.Run == nil || !r.Run.First || r.Run.Attempt != r.Attempt || r.Run.SilentSeconds != 1 || r.Model != "q" {
		t.Errorf("GetRequest: got %v", r)
	}
	for _, found := range []bool{true, false} {
		aborted, err := client.Abort(t.Context(), &penstockv1.AbortRequest{Id: id})
		check(t, err)
		if aborted.Running != found {
			t.Errorf("Abort: got %v, want running %v", aborted, found)
		}
	}
	until("nothing runs", func(s *penstockv1.EngineState) bool { return s.InflightRequests == 0 })
	if running, unknown := testutil.ToFloat64(d.grpc.running), testutil.ToFloat64(d.grpc.unknown); running != 1 || unknown != 1 {
		t.Errorf("aborts counted: got %v running, %v unknown, want 1 each", running, unknown)
	}
	resumed, err := client.Resume(t.Context(), &penstockv1.ResumeRequest{Node: "node-1"})
	check(t, err)
	if !resumed.WasDraining {
		t.Error("Resume: got no drain, want one")
	}
	until("ready again", func(s *penstockv1.EngineState) bool { return s.Ready && s.Condition == "ok" })
	f.set(func(f *fake) { f.ending = true })
	if _, err := client.Resume(t.Context(), &penstockv1.ResumeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Resume of one that ends: got %v, want failed precondition", err)
	}
}

// slow is a WatchState stream whose reader takes an update only when the test lets it.
type slow struct {
	grpc.ServerStream
	ctx context.Context
	out chan *penstockv1.EngineState
}

func (s *slow) Context() context.Context { return s.ctx }

func (s *slow) Send(r *penstockv1.WatchStateResponse) error {
	select {
	case s.out <- r.Engines[0]:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// TestWatchState: at most one update per 50 ms, one per second at rest, and for who is
// slow the newest.
func TestWatchState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("node-1").up()
		g := wire(t, Config{}, f).grpc
		ctx, cancel := context.WithCancel(t.Context())
		stream := &slow{ctx: ctx, out: make(chan *penstockv1.EngineState)}
		done := make(chan error, 1)
		go func() { done <- service{Server: g}.WatchState(&penstockv1.WatchStateRequest{}, stream) }()
		updates := func(within time.Duration) (n int) {
			limit := time.After(within)
			for {
				select {
				case <-stream.out:
					n++
				case <-limit:
					return n
				}
			}
		}
		updates(time.Second) // the engine has just become ready
		if got := updates(10 * time.Second); got != 10 {
			t.Errorf("at rest: got %d updates in 10 s, want one per second", got)
		}
		changing, stop := context.WithCancel(ctx)
		go func() {
			for i := 0; changing.Err() == nil; i++ {
				f.set(func(f *fake) { f.state.View.Running = i % 100 })
				time.Sleep(7 * time.Millisecond)
			}
		}()
		if got := updates(10 * time.Second); got < 100 || got > 201 {
			t.Errorf("changing: got %d updates in 10 s, want at most 200", got)
		}
		stop()
		f.set(func(f *fake) { f.state.View.Running = 7 })
		time.Sleep(3 * time.Second)
		<-stream.out // was on its way
		if got := <-stream.out; got.RunningRequests != 7 {
			t.Errorf("after a pause: got %d running, want the newest, 7", got.RunningRequests)
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("WatchState of a reader that is gone: got nil, want why it ended")
		}
	})
}

// TestGRPCRefuses: bad input gets a code and a text, not a guess.
func TestGRPCRefuses(t *testing.T) {
	t.Parallel()
	client := penstockv1.NewAgentServiceClient(serve(t, Config{}, newFake("node-1"), newFake("node-2")).dial())
	for _, tc := range []struct {
		name string
		call func(context.Context) error
		want codes.Code
		text string
	}{
		{"abort without id", func(ctx context.Context) error { _, err := client.Abort(ctx, &penstockv1.AbortRequest{}); return err }, codes.InvalidArgument, "id is empty"},
		{"request without id", func(ctx context.Context) error {
			_, err := client.GetRequest(ctx, &penstockv1.GetRequestRequest{})
			return err
		}, codes.InvalidArgument, "id is empty"},
		{"drain of nobody", func(ctx context.Context) error { _, err := client.Drain(ctx, &penstockv1.DrainRequest{}); return err }, codes.NotFound, "node-1, node-2"},
		{"resume of a stranger", func(ctx context.Context) error {
			_, err := client.Resume(ctx, &penstockv1.ResumeRequest{Node: "n9"})
			return err
		}, codes.NotFound, `"n9" is not served here`},
		{"state of a stranger", func(ctx context.Context) error {
			_, err := client.GetState(ctx, &penstockv1.GetStateRequest{Node: "n9"})
			return err
		}, codes.NotFound, "n9"},
		{"a message over the limit", func(ctx context.Context) error {
			_, err := client.Abort(ctx, &penstockv1.AbortRequest{Id: strings.Repeat("x", maxMessage)})
			return err
		}, codes.ResourceExhausted, "larger than max"},
	} {
		if err := tc.call(t.Context()); status.Code(err) != tc.want || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: got %v, want %v with %q", tc.name, err, tc.want, tc.text)
		}
	}
	unknown, err := client.GetRequest(t.Context(), &penstockv1.GetRequestRequest{Id: "nobody"})
	check(t, err)
	if unknown.State != "unknown" || unknown.Run != nil {
		t.Errorf("GetRequest of nobody: got %v, want unknown", unknown)
	}
}

// TestGRPCCluster: the directory's entries, newer rows of peers, and this process.
func TestGRPCCluster(t *testing.T) {
	now := time.Now()
	d := wire(t, Config{}, newFake("node-1"))
	d.rows = []fleet.Row{
		{Engine: fleet.ID("b"), Node: "b", State: reason.OK, Running: 7, KV: 0.5, Freeness: 100, At: now},
		{Engine: fleet.ID("c"), Node: "c", State: reason.Blind, At: now.Add(-20 * time.Second)},
		{Engine: fleet.ID("d"), Node: "d", State: reason.Stuck, At: now.Add(-time.Second)},
		{Engine: fleet.ID("e"), Node: "e", State: reason.Asleep, At: now},
		{Engine: fleet.ID("f"), Node: "f", State: reason.Stuck, At: now},
	}
	for _, name := range []string{"a", "b", "e", "f"} {
		d.engines = append(d.engines, registry.Engine{
			Node: name, GRPC: name + ":1", Models: []string{"q"}, State: reason.Asleep, Since: now.Add(-12 * time.Second), Cause: "paused", Seen: now,
		})
	}
	d.engines = append(d.engines, registry.Engine{Node: "old", State: reason.OK, Seen: now.Add(-30 * time.Second)})
	engines, err := d.grpc.cluster(t.Context())
	check(t, err)
	var got []string
	for _, s := range engines {
		got = append(got, strings.Join([]string{s.Node, s.Grpc, s.Condition, s.Why}, "|"))
	}
	want := []string{
		"a|a:1|asleep|asleep 12 s: paused", "b|b:1|ok|", "c||gone|gone: not heard of for 20 s", "d||stuck|stuck",
		"e|e:1|asleep|asleep 12 s: paused", "f|f:1|stuck|stuck",
		"node-1||starting|starting", "old||gone|gone: not heard of for 30 s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cluster (-want +got):\n%s", diff)
	}
	if b := engines[1]; b.RunningRequests != 7 || !b.Ready || b.FreeTokens != 100 || !slices.Equal(b.Models, []string{"q"}) {
		t.Errorf("b: got %v, want the row's figures and the directory's models", b)
	}
}

func TestLaneLimit(t *testing.T) {
	engine := func(gate string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Ready: gate != "blind", Gate: gate, Models: []string{"q"}, Pool: "a100"}
	}
	for _, tc := range []struct {
		name             string
		waiting, running int
		held             bool
		pool             string
		gates            []string
		width            int32 // of the class
		class, lane      string
	}{
		{"no engine", 1, 0, false, "", nil, 0, "no_engine", "no_engine"},
		{"no usable engine", 1, 0, true, "", []string{"blind"}, 0, "no_engine", "no_engine"},
		{"the engines' own width", 1, 4, false, "", []string{"ok", "ok"}, 4, "lane_width", "ok"},
		{"held by its width", 1, 1, true, "", []string{"ok", "kv_high"}, 4, "kv_high", "lane_width"},
		{"held, and every engine is full", 1, 1, true, "", []string{"kv_high"}, 2, "kv_high", "kv_high"},
		{"no engine of its pool", 1, 1, true, "v100", []string{"ok"}, 2, "ok", "no_engine"},
		{"an engine of its pool", 1, 1, true, "a100", []string{"ok"}, 2, "ok", "lane_width"},
		{"the commonest gate", 1, 1, false, "", []string{"kv_high", "ok", "kv_band", "kv_high"}, 8, "kv_high", "kv_high"},
		{"all open", 1, 1, false, "", []string{"ok"}, 2, "ok", "ok"},
	} {
		var engines []*penstockv1.EngineState
		for _, gate := range tc.gates {
			engines = append(engines, engine(gate))
		}
		class := oneClass(&registry.Backlog{Model: "q", Requests: tc.waiting, Running: tc.running}, engines, 2)
		if class.LimitedBy != tc.class || class.Width != tc.width {
			t.Errorf("%s: class %q, width %d; want %q, %d", tc.name, class.LimitedBy, class.Width, tc.class, tc.width)
		}
		one := oneLane(&registry.LaneBacklog{Lane: lane.Key{Model: "q", Pool: tc.pool}, Requests: tc.waiting, Running: tc.running, Width: 32, Held: tc.held}, engines)
		if one.LimitedBy != tc.lane || one.Width != 32 {
			t.Errorf("%s: lane %q, width %d; want %q, 32", tc.name, one.LimitedBy, one.Width, tc.lane)
		}
	}
	if rest := oneClass(&registry.Backlog{Model: "q", Running: 4}, []*penstockv1.EngineState{engine("ok")}, 2); rest.LimitedBy != "" {
		t.Errorf("nothing waits: limited by %q, want nothing", rest.LimitedBy)
	}
}

func TestGRPCLanes(t *testing.T) {
	t.Parallel()
	d := serve(t, Config{}, newFake("node-1"))
	d.backlog = []registry.Backlog{{Model: "a", Requests: 1, Oldest: time.Second}, {Model: "b", Requests: 2, Oldest: time.Second}}
	d.longest = []registry.LaneBacklog{
		{Lane: lane.Key{Tier: "default", Type: "chat", Model: "b", Tenant: "acme"}, Requests: 2, Oldest: time.Second}, {Lane: lane.Key{Model: "a"}, Requests: 1},
	}
	client := penstockv1.NewAgentServiceClient(d.dial())
	r, err := client.Lanes(t.Context(), &penstockv1.LanesRequest{Top: 1})
	check(t, err)
	if l := r.Classes; len(l) != 1 || l[0].Model != "b" || l[0].BacklogRequests != 2 || l[0].LimitedBy != "no_engine" || l[0].OldestSeconds != 1 {
		t.Errorf("classes: got %v, want the longest of 2", l)
	}
	if l := r.Lanes; r.Total != 2 || len(l) != 1 || l[0].Tenant != "acme" || l[0].Type != "chat" || l[0].BacklogRequests != 2 || l[0].LimitedBy != "no_engine" || l[0].OldestSeconds != 1 {
		t.Errorf("lanes: got %v, want the longest of 2", r)
	}
	d.away = errors.New("store away")
	if r, err = client.Lanes(t.Context(), &penstockv1.LanesRequest{}); err != nil || r.Problem != "store away" || len(r.Classes) != 2 {
		t.Errorf("lanes without the store: got %v, %v; want the classes and the problem", r, err)
	}
}

// TestWatchersAreBounded: one stream too many is refused.
func TestWatchersAreBounded(t *testing.T) {
	t.Parallel()
	d := serve(t, Config{}, newFake("node-1"))
	d.grpc.watchers.Store(maxWatchers)
	stream, err := penstockv1.NewAgentServiceClient(d.dial()).WatchState(t.Context(), &penstockv1.WatchStateRequest{})
	check(t, err)
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("watcher %d: got %v, want resource exhausted", maxWatchers+1, err)
	}
	d.grpc.watchers.Store(0)
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
