package agent

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"penstock/fleet"
	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/scheduler"
)

// door is a GRPC server under test.
type door struct {
	t    *testing.T
	grpc *GRPC
	addr string
}

// serve runs a server for nodes until the test ends.
func serve(t *testing.T, cfg GRPCConfig, nodes ...*node) *door {
	t.Helper()
	deps := GRPCDeps{Lookup: nodes[0].reg.Lookup, Backlog: nodes[0].reg.Backlog, Width: 2, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(nodes[0].logs, nil))}
	for _, n := range nodes {
		deps.Agents = append(deps.Agents, n.agent)
	}
	g, err := NewGRPC(cfg, deps)
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
	})
	return &door{t: t, grpc: g, addr: l.Addr().String()}
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
	up, down := newNode(t), newNode(t, func(c *Config) { c.Node = "node-2" })
	down.vllm.Stop()
	d := serve(t, GRPCConfig{}, up, down)
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
	up.run()
	next(healthpb.HealthCheckResponse_SERVING)
	if got := status("q"); got != "SERVING" {
		t.Errorf("Check(q): got %s, want SERVING", got)
	}
	up.stop()
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	if got := status("q"); got != "NOT_SERVING" {
		t.Errorf("Check(q) while draining: got %s, want NOT_SERVING", got)
	}
}

// TestGRPCState: one engine from start to drain and back, as a watcher sees it.
func TestGRPCState(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := serve(t, GRPCConfig{}, n)
	client := penstockv1.NewAgentServiceClient(d.dial())
	state := func() *penstockv1.EngineState {
		t.Helper()
		r, err := client.GetState(t.Context(), &penstockv1.GetStateRequest{})
		check(t, err)
		if len(r.Engines) != 1 {
			t.Fatalf("GetState: got %d engines, want 1", len(r.Engines))
		}
		return r.Engines[0]
	}
	if s := state(); s.Condition != "starting" || s.Ready || s.Why == "" {
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
	n.run()
	until("ready", func(s *penstockv1.EngineState) bool { return s.Ready && s.Gate == "ok" && s.FreeTokens > 0 })
	if s := state(); s.Condition != "ok" || s.Why != "" || s.KvTokens == 0 || !slices.Equal(s.Models, []string{"q"}) || !s.Local {
		t.Errorf("ready: got %v", s)
	}
	m := n.send(n.message(4000))
	n.event(m.ID, func(e response.Event) bool { return e.Kind == response.First })
	until("running", func(s *penstockv1.EngineState) bool { return s.InflightRequests == 1 && s.LedgerTokens > 10 })

	drained, err := client.Drain(t.Context(), &penstockv1.DrainRequest{})
	check(t, err)
	if drained.InflightRequests != 1 {
		t.Errorf("Drain: got %v, want 1 in flight", drained)
	}
	until("draining", func(s *penstockv1.EngineState) bool { return s.Condition == "draining" && !s.Ready })

	request, err := client.GetRequest(t.Context(), &penstockv1.GetRequestRequest{Id: m.ID})
	check(t, err)
	if r := request; r.State != "streaming" || r.Owner != "node-1" || r.Attempt == "" || r.Tries != 1 || r.Run == nil || !r.Run.First || r.Run.Attempt != r.Attempt || r.Model != "q" {
		t.Errorf("GetRequest: got %v", r)
	}
	for _, found := range []bool{true, false} {
		aborted, err := client.Abort(t.Context(), &penstockv1.AbortRequest{Id: m.ID})
		check(t, err)
		if aborted.Running != found {
			t.Errorf("Abort: got %v, want running %v", aborted, found)
		}
		if e := n.outcome(m.ID); e.Reason != reason.Aborted {
			t.Errorf("aborted request: got %+v", e)
		}
		until("nothing runs", func(s *penstockv1.EngineState) bool { return s.InflightRequests == 0 })
	}
	if running, unknown := testutil.ToFloat64(d.grpc.running), testutil.ToFloat64(d.grpc.unknown); running != 1 || unknown != 1 {
		t.Errorf("aborts counted: got %v running, %v unknown, want 1 each", running, unknown)
	}
	resumed, err := client.Resume(t.Context(), &penstockv1.ResumeRequest{Node: "node-1"})
	check(t, err)
	if !resumed.WasDraining {
		t.Error("Resume: got no drain, want one")
	}
	until("ready again", func(s *penstockv1.EngineState) bool { return s.Ready && s.Condition == "ok" })
	if e := n.outcome(n.send(n.message(4)).ID); e.Kind != response.Done {
		t.Errorf("request after the drain: got %+v, want done", e)
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
		n := newStage(t).run()
		g, err := NewGRPC(GRPCConfig{}, GRPCDeps{Agents: []*Agent{n.agent}, Lookup: n.reg.Lookup, Backlog: n.reg.Backlog, Metrics: prometheus.NewRegistry(), Log: n.agent.log})
		check(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		stream := &slow{ctx: ctx, out: make(chan *penstockv1.EngineState)}
		done := make(chan error, 1)
		go func() { done <- service{GRPC: g}.WatchState(&penstockv1.WatchStateRequest{}, stream) }()
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
				n.fake.set(func(f *fakeEngine) { f.sample.Running = i % 100 })
				time.Sleep(7 * time.Millisecond)
			}
		}()
		if got := updates(10 * time.Second); got < 100 || got > 201 {
			t.Errorf("changing: got %d updates in 10 s, want at most 200", got)
		}
		stop()
		n.fake.set(func(f *fakeEngine) { f.sample.Running = 7 })
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
	n, other := newNode(t), newNode(t, func(c *Config) { c.Node = "node-2" })
	client := penstockv1.NewAgentServiceClient(serve(t, GRPCConfig{}, n, other).dial())
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
	n := newNode(t)
	rows := []fleet.Row{
		{Engine: fleet.ID("b"), Node: "b", State: reason.OK, Running: 7, KV: 0.5, Freeness: 100, At: now},
		{Engine: fleet.ID("c"), Node: "c", State: reason.Blind, At: now.Add(-20 * time.Second)},
		{Engine: fleet.ID("d"), Node: "d", State: reason.Stuck, At: now.Add(-time.Second)},
		{Engine: fleet.ID("e"), Node: "e", State: reason.Asleep, At: now},
		{Engine: fleet.ID("f"), Node: "f", State: reason.Stuck, At: now},
	}
	n.agent.deps.Peers = func() []fleet.Row { return rows }
	for _, name := range []string{"a", "b", "e", "f"} {
		check(t, n.reg.PutEngine(t.Context(), registry.Engine{
			Node: name, GRPC: name + ":1", Models: []string{"q"}, State: reason.Asleep, Since: now.Add(-12 * time.Second), Cause: "paused",
		}))
	}
	g, err := NewGRPC(GRPCConfig{}, GRPCDeps{Agents: []*Agent{n.agent}, Lookup: n.reg.Lookup, Backlog: n.reg.Backlog, Metrics: prometheus.NewRegistry(), Log: n.agent.log})
	check(t, err)
	n.agent.deps.Directory = aged{n.reg, "old", now.Add(-30 * time.Second)}
	engines, err := g.cluster(t.Context())
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

// aged is a directory with one more engine, seen long ago.
type aged struct {
	registry.Directory
	node string
	seen time.Time
}

func (d aged) Engines(ctx context.Context) ([]registry.Engine, error) {
	list, err := d.Directory.Engines(ctx)
	return append(list, registry.Engine{Node: d.node, State: reason.OK, Seen: d.seen}), err
}

func TestGateText(t *testing.T) {
	cfg := scheduler.DefaultConfig()
	for want, v := range map[string]scheduler.View{
		"kv 94 % >= 92 %":                                   {Gate: reason.KVHigh, KV: 0.94},
		"kv 85 %, open again below 75 %":                    {Gate: reason.KVHigh, KV: 0.85},
		"kv 81 % >= 80 %":                                   {Gate: reason.KVBand, KV: 0.81},
		"kv 60 % and 5 tokens started that do not show yet": {Gate: reason.KVCredit, KV: 0.6, Credit: 5},
		"24 waiting in the engine >= 20":                    {Gate: reason.WaitingHigh, Waiting: 3, PendingSeq: 24},
		"6 waiting in the engine >= 5":                      {Gate: reason.WaitingSome, Waiting: 6},
		"9000 prompt tokens before their first token":       {Gate: reason.PrefillBusy, Pending: 9000},
		"its speed is not known yet":                        {Gate: reason.Cold},
		"late":                                              {Gate: reason.Late},
	} {
		if got := gateText(&v, &cfg); got != want {
			t.Errorf("gate %v: got %q, want %q", v.Gate, got, want)
		}
	}
}

func TestLaneLimit(t *testing.T) {
	engine := func(gate string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Ready: gate != "blind", Gate: gate, Models: []string{"q"}}
	}
	for _, tc := range []struct {
		name             string
		waiting, running int32
		gates            []string
		width            int32
		want             string
	}{
		{"nothing waits", 0, 4, []string{"ok"}, 2, ""},
		{"no engine", 1, 0, nil, 0, "no_engine"},
		{"no usable engine", 1, 0, []string{"blind"}, 0, "no_engine"},
		{"width", 1, 4, []string{"ok", "ok"}, 4, "lane_width"},
		{"the commonest gate", 1, 1, []string{"kv_high", "ok", "kv_band", "kv_high"}, 8, "kv_high"},
		{"all open", 1, 1, []string{"ok"}, 2, "ok"},
	} {
		var engines []*penstockv1.EngineState
		for _, gate := range tc.gates {
			engines = append(engines, engine(gate))
		}
		l := &penstockv1.Lane{Model: "q", BacklogRequests: tc.waiting, RunningRequests: tc.running}
		if limit(l, engines, 2); l.LimitedBy != tc.want || l.Width != tc.width {
			t.Errorf("%s: got %q, width %d; want %q, %d", tc.name, l.LimitedBy, l.Width, tc.want, tc.width)
		}
	}
}

func TestGRPCLanes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	client := penstockv1.NewAgentServiceClient(serve(t, GRPCConfig{}, n).dial())
	for _, model := range []string{"b", "a", "b"} {
		m := n.message(10)
		m.Lane.Model = model
		n.open(m)
	}
	r, err := client.Lanes(t.Context(), &penstockv1.LanesRequest{Top: 1})
	check(t, err)
	if l := r.Lanes; r.Total != 2 || len(l) != 1 || l[0].Model != "b" || l[0].BacklogRequests != 2 || l[0].LimitedBy != "no_engine" || l[0].OldestSeconds <= 0 {
		t.Errorf("Lanes: got %v, want the longest of 2", r)
	}
}

// TestWatchersAreBounded: one stream too many is refused.
func TestWatchersAreBounded(t *testing.T) {
	t.Parallel()
	d := serve(t, GRPCConfig{}, newNode(t))
	d.grpc.watchers.Store(maxWatchers)
	stream, err := penstockv1.NewAgentServiceClient(d.dial()).WatchState(t.Context(), &penstockv1.WatchStateRequest{})
	check(t, err)
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("watcher %d: got %v, want resource exhausted", maxWatchers+1, err)
	}
	d.grpc.watchers.Store(0)
}
