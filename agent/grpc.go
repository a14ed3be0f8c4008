package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

const (
	// Liveness is the health service that concerns the process alone.
	Liveness = "liveness"

	maxStreams   = 256                    // per connection; grpc's default is no limit
	pingsAllowed = 10 * time.Second       // closest keepalive pings of a client; grpc's default of 5 min cuts off careful clients
	stopWithin   = 200 * time.Millisecond // for calls in progress when Serve ends
)

// GRPC serves grpc.health.v1 for one agent or several in one process: ""
// (readiness) says SERVING if any agent is ready, a model's name if any ready agent
// serves it, Liveness always.
type GRPC struct {
	agents []*Agent
	log    *slog.Logger
	health *health.Server

	mu       sync.Mutex // serialises update, so that the newest state is set last
	draining bool
	models   []string // every model ever announced; one that went away says NOT_SERVING
}

// NewGRPC starts nothing. Agents tell it of changes from now on.
func NewGRPC(agents []*Agent, log *slog.Logger) *GRPC {
	g := &GRPC{agents: agents, log: log, health: health.NewServer()}
	g.health.SetServingStatus(Liveness, healthpb.HealthCheckResponse_SERVING)
	for _, a := range agents {
		a.onHealth(g.update)
	}
	g.update()
	return g
}

// Drain makes everything but Liveness NOT_SERVING for good: the process is going
// away, although its agents finish what they run.
func (g *GRPC) Drain() {
	g.mu.Lock()
	g.draining = true
	g.mu.Unlock()
	g.update()
}

// update sets what the agents say now. Each agent calls it after a change.
func (g *GRPC) update() {
	g.mu.Lock()
	defer g.mu.Unlock()
	ready := false
	serving := make(map[string]bool)
	for _, a := range g.agents {
		h := a.Health()
		h.Ready = h.Ready && !g.draining
		ready = ready || h.Ready
		for _, m := range h.Models {
			serving[m] = serving[m] || h.Ready
			if m != Liveness && !slices.Contains(g.models, m) {
				g.models = append(g.models, m)
			}
		}
	}
	g.set("", ready)
	for _, m := range g.models {
		g.set(m, serving[m])
	}
}

func (g *GRPC) set(service string, ok bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		status = healthpb.HealthCheckResponse_SERVING
	}
	g.health.SetServingStatus(service, status)
}

// Serve answers on l until ctx ends, then tells every watcher NOT_SERVING and
// closes l. It returns nil after an ordered end.
func (g *GRPC) Serve(ctx context.Context, l net.Listener) error {
	srv := grpc.NewServer(
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
	)
	healthpb.RegisterHealthServer(srv, g.health)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve grpc on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	g.health.Shutdown()
	// A Watch never ends by itself: give the last status time to go out, then stop.
	force := time.AfterFunc(stopWithin, srv.Stop)
	defer force.Stop()
	srv.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		g.log.Debug("grpc server ended", "err", err)
	}
	return nil
}
