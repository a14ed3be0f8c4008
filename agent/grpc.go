package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
	"penstock/registry"
)

const (
	// Liveness is the health service that concerns the process alone.
	Liveness = "liveness"

	maxStreams     = 256                    // per connection; grpc's default is no limit
	maxWatchers    = 256                    // streams of state and load, over all connections
	maxMessage     = 64 << 10               // received; the largest request is an id
	pingsAllowed   = 10 * time.Second       // closest keepalive pings of a client; grpc's default of 5 min cuts off careful clients
	handshakeLimit = 10 * time.Second       // of a new connection
	stopWithin     = 200 * time.Millisecond // for calls in progress when Serve ends
)

// lifetime of a connection: clients look up their name again now and then, and a dead
// peer is noticed within a minute.
var lifetime = keepalive.ServerParameters{
	MaxConnectionIdle: 15 * time.Minute, MaxConnectionAge: 30 * time.Minute, MaxConnectionAgeGrace: time.Minute,
	Time: 30 * time.Second, Timeout: 10 * time.Second,
}

// GRPCConfig names the PEM files of a server that speaks TLS beside plain text, on the
// same port. They are read again when they change.
type GRPCConfig struct {
	Cert, Key string // "" = plain text only
	ClientCA  string // who signs the certificates of clients that may give orders from other hosts; "" = none may
}

// Validate names the field and what to set instead.
func (c GRPCConfig) Validate() error {
	switch {
	case (c.Cert == "") != (c.Key == ""):
		return fmt.Errorf("agent: Cert is %q and Key %q; set both or neither", c.Cert, c.Key)
	case c.ClientCA != "" && c.Cert == "":
		return fmt.Errorf("agent: ClientCA is %q and Cert is not set; set Cert and Key too", c.ClientCA)
	}
	return nil
}

// GRPCDeps is what a GRPC server speaks for.
type GRPCDeps struct {
	Agents  []*Agent
	Lookup  func(ctx context.Context, id string) (registry.Record, error)
	Backlog func(now time.Time) []registry.Backlog
	Width   int // requests that one engine runs at most; 0 = not known
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// GRPC serves AgentService, grpc.health.v1 and ORCA's load reports for one agent or
// several in one process. Health: "" (readiness) says SERVING if any agent is ready,
// a model's name if any ready agent serves it, Liveness always.
type GRPC struct {
	deps   GRPCDeps
	log    *slog.Logger
	health *health.Server
	keys   *keyFiles // nil: plain text only

	running, unknown prometheus.Counter // aborts, by what was found here
	watchers         atomic.Int64
	ended            chan struct{} // closed when Serve ends

	mu       sync.Mutex // serialises update, so that the newest state is set last
	draining bool
	models   []string // every model ever announced; one that went away says NOT_SERVING
}

// NewGRPC reads the certificates and starts nothing. Agents tell it of changes from
// now on.
func NewGRPC(cfg GRPCConfig, deps GRPCDeps) (*GRPC, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(deps.Agents) == 0 || deps.Lookup == nil || deps.Backlog == nil || deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("agent: a dependency is nil; GRPCDeps needs all of them")
	}
	aborts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_grpc_aborts_total", Help: "Aborts asked for by gRPC: of what ran here, and of what did not.",
	}, []string{"found"})
	if err := deps.Metrics.Register(aborts); err != nil {
		return nil, err
	}
	g := &GRPC{
		deps: deps, log: deps.Log, health: health.NewServer(), ended: make(chan struct{}),
		running: aborts.WithLabelValues("running"), unknown: aborts.WithLabelValues("unknown"),
	}
	if cfg.Cert != "" {
		var err error
		if g.keys, err = newKeyFiles(cfg, deps.Log); err != nil {
			return nil, err
		}
	}
	g.health.SetServingStatus(Liveness, healthpb.HealthCheckResponse_SERVING)
	for _, a := range deps.Agents {
		a.onHealth(g.update)
	}
	g.update()
	return g, nil
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
	for _, a := range g.deps.Agents {
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
// closes l. It returns nil after an ordered end. It may be called once.
func (g *GRPC) Serve(ctx context.Context, l net.Listener) error {
	options := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage), grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
		grpc.KeepaliveParams(lifetime), grpc.UnaryInterceptor(guardUnary), grpc.StreamInterceptor(guardStream),
	}
	if g.keys != nil {
		options = append(options, grpc.Creds(newEitherCredentials(g.keys)))
	}
	srv := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(srv, g.health)
	penstockv1.RegisterAgentServiceServer(srv, service{GRPC: g})
	srv.RegisterService(&orcaService, g)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve grpc on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	g.health.Shutdown()
	close(g.ended)
	// A health Watch never ends by itself: give the last status time to go out, then stop.
	force := time.AfterFunc(stopWithin, srv.Stop)
	defer force.Stop()
	srv.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		g.log.Debug("grpc server ended", "err", err)
	}
	return nil
}

// service is AgentService; GRPC has a Drain of its own.
type service struct {
	*GRPC
	penstockv1.UnsafeAgentServiceServer
}

// named finds the agent of node; "" is the only one.
func (g *GRPC) named(node string) (*Agent, error) {
	names := make([]string, 0, len(g.deps.Agents))
	for _, a := range g.deps.Agents {
		if a.cfg.Node == node {
			return a, nil
		}
		names = append(names, a.cfg.Node)
	}
	if node == "" && len(g.deps.Agents) == 1 {
		return g.deps.Agents[0], nil
	}
	return nil, status.Errorf(codes.NotFound, "node %q is not served here; these are: %s", node, strings.Join(names, ", "))
}
