package main

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	penstockv1 "penstock/proto/penstock/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPick(t *testing.T) {
	now := time.Now()
	engine := func(node, gate string, free int32, models ...string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Node: node, Ready: true, Gate: gate, FreeTokens: free, Models: models}
	}
	for _, tc := range []struct {
		name   string
		agents map[string]*agent
		want   string
	}{
		{"nobody", nil, ""},
		{"the most room", map[string]*agent{
			"a": {serving: true, heard: now, engines: []*penstockv1.EngineState{engine("a1", "ok", 10, "q"), engine("a2", "ok", 30, "q")}},
			"b": {serving: true, heard: now, engines: []*penstockv1.EngineState{engine("b1", "ok", 20, "q")}},
		}, "a2"},
		{"not serving", map[string]*agent{"a": {heard: now, engines: []*penstockv1.EngineState{engine("a1", "ok", 10, "q")}}}, ""},
		{"silent", map[string]*agent{"a": {serving: true, heard: now.Add(-4 * time.Second), engines: []*penstockv1.EngineState{engine("a1", "ok", 10, "q")}}}, ""},
		{"full", map[string]*agent{"a": {serving: true, heard: now, engines: []*penstockv1.EngineState{engine("a1", "kv_high", 0, "q")}}}, ""},
		{"another model", map[string]*agent{"a": {serving: true, heard: now, engines: []*penstockv1.EngineState{engine("a1", "ok", 10, "r")}}}, ""},
	} {
		s := &Scheduler{model: "q", agents: tc.agents}
		if got, _, ok := s.Pick(now); got != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tc.name, got, ok, tc.want)
		}
	}
}

// engine is an agent's server whose state the test says.
type engine struct {
	penstockv1.UnimplementedAgentServiceServer
	states chan *penstockv1.EngineState
}

func (e *engine) WatchState(_ *penstockv1.WatchStateRequest, stream penstockv1.AgentService_WatchStateServer) error {
	for {
		select {
		case s := <-e.states:
			if err := stream.Send(&penstockv1.WatchStateResponse{Engines: []*penstockv1.EngineState{s}}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// TestRun: health and state reach Pick, each when it changes.
func TestRun(t *testing.T) {
	e, h := &engine{states: make(chan *penstockv1.EngineState)}, health.NewServer()
	srv := grpc.NewServer()
	penstockv1.RegisterAgentServiceServer(srv, e)
	healthpb.RegisterHealthServer(srv, h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()

	s := New("q")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l.Addr().String()) }()
	until := func(what string, want bool) {
		t.Helper()
		limit := time.After(10 * time.Second)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			node, address, ok := s.Pick(time.Now())
			if ok == want && (!ok || node == "n1" && address == l.Addr().String()) {
				return
			}
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("%s: got %q, %v; want %v", what, node, ok, want)
			}
		}
	}
	open := &penstockv1.EngineState{Node: "n1", Ready: true, Gate: "ok", FreeTokens: 100, Models: []string{"q"}}
	h.SetServingStatus("q", healthpb.HealthCheckResponse_SERVING)
	e.states <- open
	until("open", true)
	e.states <- &penstockv1.EngineState{Node: "n1", Ready: true, Gate: "kv_high", Models: []string{"q"}}
	until("full", false)
	e.states <- open
	until("open again", true)
	h.SetServingStatus("q", healthpb.HealthCheckResponse_NOT_SERVING)
	until("not serving", false)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: got %v, want nil", err)
	}
}
