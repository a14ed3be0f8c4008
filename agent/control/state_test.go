package control

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"penstock/agent/state"
	"penstock/fleet"
	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
	"penstock/registry"
)

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
