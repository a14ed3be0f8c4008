// Package control is the agent's gRPC face: its state for people and schedulers, health
// checks and load reports, and orders (abort, drain, resume). It decides nothing: who may
// call what is all it judges.
package control

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

	"penstock/agent/state"
	"penstock/fleet"
	"penstock/lane"
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

// Config names the PEM files of a server that speaks TLS beside plain text, on the
// same port. They are read again when they change.
type Config struct {
	Cert, Key string // "" = plain text only
	ClientCA  string // who signs the certificates of clients that may give orders from other hosts; "" = none may
}

// Validate names the field and what to set instead.
func (c Config) Validate() error {
	switch {
	case (c.Cert == "") != (c.Key == ""):
		return fmt.Errorf("control: Cert is %q and Key %q; set both or neither", c.Cert, c.Key)
	case c.ClientCA != "" && c.Cert == "":
		return fmt.Errorf("control: ClientCA is %q and Cert is not set; set Cert and Key too", c.ClientCA)
	}
	return nil
}

// Agent is one engine's agent; *agent.Agent is one. All are called concurrently.
type Agent interface {
	State(now time.Time) state.State
	Attempt(now time.Time, id string) (state.Run, bool) // the one of id that runs there
	Listen(f func())                                    // f is called after each change of whether it is ready, and must not wait
	Cancel(id, attempt string) (runs bool)
	Pause() (running int)
	Resume() (was bool, err error)
}

// Deps is what a Server speaks for.
type Deps struct {
	Agents  []Agent
	Engines func(ctx context.Context) ([]registry.Engine, error) // the directory
	Peers   func() []fleet.Row
	Lookup  func(ctx context.Context, id string) (registry.Record, error)
	Backlog func(now time.Time) []registry.Backlog // by tier and model
	Longest func(ctx context.Context, n int) (longest []registry.LaneBacklog, waiting int, err error)
	Width   int // requests that one engine runs at most; 0 = not known

	// Limits are a lane's: requests that run at once on each engine, starts per second on
	// all together; 0 = none.
	Limits func(k lane.Key) (concurrency int, pace float64)

	Policy   func() Policy      // nil: not known
	Gateways func() []fleet.Row // that gossip; nil: none

	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Policy is what the process goes by: who may do what.
type Policy struct {
	Source  string  // where it lies
	Hash    string  // "" = flags make it
	Newest  string  // the hash of the text that lies there; "" = none was read
	Age     float64 // seconds since it came into force
	Problem string  // why it is not the newest
}

// Server serves AgentService, grpc.health.v1 and ORCA's load reports for one agent or
// several in one process. Health: "" (readiness) says SERVING if any agent is ready,
// a model's name if any ready agent serves it, Liveness always.
type Server struct {
	deps   Deps
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

// New reads the certificates and starts nothing. Agents tell it of changes from now on.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(deps.Agents) == 0 || deps.Engines == nil || deps.Peers == nil || deps.Lookup == nil || deps.Backlog == nil || deps.Longest == nil || deps.Limits == nil || deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("control: a dependency is nil; Deps needs all of them")
	}
	aborts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_grpc_aborts_total", Help: "Aborts asked for by gRPC: of what ran here, and of what did not.",
	}, []string{"found"})
	if err := deps.Metrics.Register(aborts); err != nil {
		return nil, err
	}
	s := &Server{
		deps: deps, log: deps.Log, health: health.NewServer(), ended: make(chan struct{}),
		running: aborts.WithLabelValues("running"), unknown: aborts.WithLabelValues("unknown"),
	}
	if cfg.Cert != "" {
		var err error
		if s.keys, err = newKeyFiles(cfg, deps.Log); err != nil {
			return nil, err
		}
		if err := deps.Metrics.Register(s.keys); err != nil {
			return nil, err
		}
	}
	s.health.SetServingStatus(Liveness, healthpb.HealthCheckResponse_SERVING)
	for _, a := range deps.Agents {
		a.Listen(s.update)
	}
	s.update()
	return s, nil
}

// Drain makes everything but Liveness NOT_SERVING for good: the process is going
// away, although its agents finish what they run.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.update()
}

// update sets what the agents say now. Each agent calls it after a change.
func (s *Server) update() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, ready := time.Now(), false
	serving := make(map[string]bool)
	for _, a := range s.deps.Agents {
		of := a.State(now)
		up := of.Ready && len(of.Models) > 0 && !s.draining
		ready = ready || up
		for _, m := range of.Models {
			serving[m] = serving[m] || up
			if m != Liveness && !slices.Contains(s.models, m) {
				s.models = append(s.models, m)
			}
		}
	}
	s.set("", ready)
	for _, m := range s.models {
		s.set(m, serving[m])
	}
}

func (s *Server) set(service string, ok bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, status)
}

// Serve answers on l until ctx ends, then tells every watcher NOT_SERVING and
// closes l. It returns nil after an ordered end. It may be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	options := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage), grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
		grpc.KeepaliveParams(lifetime), grpc.UnaryInterceptor(guardUnary), grpc.StreamInterceptor(guardStream),
	}
	if s.keys != nil {
		options = append(options, grpc.Creds(newEitherCredentials(s.keys)))
		watching, stop := context.WithCancel(ctx)
		var watcher sync.WaitGroup
		watcher.Go(func() { s.keys.watch(watching) })
		defer watcher.Wait()
		defer stop()
	}
	srv := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(srv, s.health)
	penstockv1.RegisterAgentServiceServer(srv, service{Server: s})
	srv.RegisterService(&orcaService, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve grpc on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	s.health.Shutdown()
	close(s.ended)
	// A health Watch never ends by itself: give the last status time to go out, then stop.
	force := time.AfterFunc(stopWithin, srv.Stop)
	defer force.Stop()
	srv.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		s.log.Debug("grpc server ended", "err", err)
	}
	return nil
}

// service is AgentService; Server has a Drain of its own.
type service struct {
	*Server
	penstockv1.UnsafeAgentServiceServer
}

// named finds the agent of node; "" is the only one.
func (s *Server) named(now time.Time, node string) (Agent, error) {
	names := make([]string, 0, len(s.deps.Agents))
	for _, a := range s.deps.Agents {
		name := a.State(now).Node
		if name == node {
			return a, nil
		}
		names = append(names, name)
	}
	if node == "" && len(s.deps.Agents) == 1 {
		return s.deps.Agents[0], nil
	}
	return nil, status.Errorf(codes.NotFound, "node %q is not served here; these are: %s", node, strings.Join(names, ", "))
}
