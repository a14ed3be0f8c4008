package control

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
)

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
