// Package stack wires the processes of penstock out of their options: standalone, agent
// and gateway. It is the one place where adapters meet.
package stack

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/admin"
	"penstock/agent"
	"penstock/agent/control"
	"penstock/agent/health"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/fleet"
	"penstock/gateway"
	"penstock/policy"
	"penstock/policy/source"
	queuememory "penstock/queue/memory"
	"penstock/registry"
	registrymemory "penstock/registry/memory"
	"penstock/response"
	responsememory "penstock/response/memory"
	"penstock/vllm/simengine"
)

// Standalone is standalone's parts, wired; Run lets them run.
type Standalone struct {
	OnReady func(model string) // called once, when the first engine can take work; set before Run
	Nodes   []string           // names of agents, in the order of --engine; not to be changed
	Records *registrymemory.Registry
	Lanes   *queuememory.Queue

	opts     *flags.Options
	log      *slog.Logger
	sims     []*Simulated
	agents   []*agent.Agent
	gateway  *gateway.Gateway
	grpc     *control.Server
	admin    *admin.Server
	policies *policies
	again    *reloader

	listener, grpcListener, adminListener net.Listener
}

// NewStandalone opens the listeners and wires everything; nothing runs yet. The order
// is the way of a request, backwards.
func NewStandalone(opts *flags.Options, log *slog.Logger) (_ *Standalone, err error) {
	s := &Standalone{opts: opts, log: log}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.listen(); err != nil {
		return nil, err
	}
	metrics := newMetrics()
	s.policies, err = newPolicies(opts, opts.Redis, log, metrics)
	if err != nil {
		return nil, err
	}
	s.again = newReloader(s.policies, nil, opts.Settings)
	bus := responsememory.New()
	bounds := queuememory.DefaultConfig()
	s.Lanes, err = queuememory.New(bounds)
	if err != nil {
		return nil, err
	}
	records := registrymemory.DefaultConfig()
	records.Terminal, records.Rank, records.Pace, records.Bounds = response.Terminal, s.policies.Rank, s.policies.Pace, s.policies.Bounds
	s.Records, err = registrymemory.New(records, bus.Append, s.cancel)
	if err != nil {
		return nil, err
	}
	for i, engine := range opts.Engines {
		name, address, err := s.engine(i, engine)
		if err != nil {
			return nil, err
		}
		cfg := agent.DefaultConfig()
		cfg.Node = name
		cfg.SetEngine(address)
		cfg.LeaveAfter = 0 // a lane in memory costs nothing to leave: its requests go to the other engines at once
		cfg.Engine.APIKey, cfg.Grace, cfg.Scheduler.Law, cfg.Scheduler.Tiers = opts.EngineKey, opts.Grace, opts.Law, s.policies.Tiers()
		node, err := agent.New(cfg, agent.Deps{
			Records: s.Records, Directory: s.Records, Consumer: s.Lanes.Consumer(name), Append: bus.Append, Peers: s.Rows, Backlog: s.Records.Backlog, LaneLimit: s.policies.Concurrency,
			Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"node": name}, metrics), Log: log,
		})
		if err != nil {
			return nil, err
		}
		s.policies.OnChange(func(p *policy.Policy) { node.SetTiers(p.Tiers) })
		s.Nodes = append(s.Nodes, name)
		s.agents = append(s.agents, node)
	}
	metrics.MustRegister(newLaneGauges(s.Records.Backlog, s.health, bounds.Concurrency, s.policies.Current))
	metrics.MustRegister(registry.QuotaMetrics(s.Records.Quota)...)
	cfg := gateway.DefaultConfig()
	cfg.Listen = s.listener.Addr().String()
	opts.Door(&cfg)
	s.gateway, err = gateway.New(cfg, gateway.Deps{
		Records: s.Records, Directory: s.Records, Publish: s.Lanes.Publish, Discard: s.Lanes.Discard, OpenMailbox: bus.Open,
		Rows: s.Rows, Cause: s.cause, Policy: s.policies.Current(), Metrics: metrics, Log: log,
	})
	if err != nil {
		return nil, err
	}
	s.policies.OnChange(s.gateway.SetPolicy)
	s.grpc, err = control.New(opts.GRPCKeys, control.Deps{
		Agents: spoken(s.agents), Engines: s.Records.Engines, Peers: s.Rows, Lookup: s.Records.Lookup, Backlog: s.Records.Backlog, Longest: s.Records.Longest, Width: bounds.Concurrency,
		Limits: s.policies.Limits, Policy: s.policies.Control, Metrics: metrics, Log: log,
	})
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	s.admin, err = admin.New(admin.DefaultConfig(), admin.Deps{
		Gatherer: metrics, Live: func() (bool, string) { return true, "" }, Ready: s.ready, Started: func() bool { return true }, State: s.state, Reload: s.again.page, Log: log,
	})
	return s, err
}

// Run serves until ctx ends, then drains: the gateway first, so that open answers
// finish, then the agents, then what observes them. Any part that ends early
// takes the others down in the same order.
func (s *Standalone) Run(ctx context.Context) error {
	defer s.close()
	agents := make([]part, len(s.agents))
	for i, a := range s.agents {
		agents[i] = a.Run
	}
	rest := []part{
		s.Records.Run, s.policies.Run, s.hangup,
		func(ctx context.Context) error { return s.grpc.Serve(ctx, s.grpcListener) },
		func(ctx context.Context) error { return s.admin.Serve(ctx, s.adminListener) },
	}
	for _, sim := range s.sims {
		rest = append(rest, sim.Run)
	}
	door := func(ctx context.Context) error {
		defer context.AfterFunc(ctx, s.grpc.Drain)()
		return s.gateway.Serve(ctx, s.listener)
	}
	return inOrder(ctx, []part{door, s.waitReady}, agents, rest)
}

// hangup reads the policy again at SIGHUP, until ctx ends.
func (s *Standalone) hangup(ctx context.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			if err := s.Reload(); err != nil {
				s.log.Error("reload refused, that part stays as it was", "err", err)
			} else {
				s.log.Info("reloaded")
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// waitReady calls onReady once an engine takes work, says what it waits for until
// then, and returns when ctx ends.
func (s *Standalone) waitReady(ctx context.Context) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	said := time.Now()
	for {
		for _, h := range s.health() {
			if h.Ready {
				if s.OnReady != nil {
					s.OnReady(h.Models[0])
				}
				<-ctx.Done()
				return nil
			}
		}
		if time.Since(said) > 2*time.Second {
			said = time.Now().Add(8 * time.Second)
			_, why := s.ready()
			s.log.Warn("waiting for an engine", "why", why, "engines", s.opts.Engines)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// listen opens the three addresses; an address in use names its flag.
func (s *Standalone) listen() error {
	for _, l := range []struct {
		flag, address string
		into          *net.Listener
	}{{"--listen", s.opts.Listen, &s.listener}, {"--grpc", s.opts.GRPC, &s.grpcListener}, {"--admin", s.opts.Admin, &s.adminListener}} {
		listener, err := listen(l.flag, l.address)
		if err != nil {
			return err
		}
		*l.into = listener
	}
	return nil
}

// close is for a stack that does not run: whoever serves a listener closes it.
func (s *Standalone) close() {
	for _, l := range []net.Listener{s.listener, s.grpcListener, s.adminListener} {
		if l != nil {
			_ = l.Close()
		}
	}
	for _, sim := range s.sims {
		_ = sim.listener.Close()
	}
}

// engine gives the node name and URL of the i-th --engine, starting the simulated
// one where asked.
func (s *Standalone) engine(i int, engine string) (node, address string, err error) {
	if engine != "sim" {
		u, err := url.Parse(engine)
		if err != nil {
			return "", "", err
		}
		return u.Host + u.Path, engine, nil
	}
	cfg := simengine.DefaultConfig()
	cfg.Seed = uint64(i + 1)
	sim, err := NewSimulated("127.0.0.1:0", cfg)
	if err != nil {
		return "", "", err
	}
	s.sims = append(s.sims, sim)
	return fmt.Sprintf("sim%d", i), sim.URL(), nil
}

func (s *Standalone) cancel(owner, id, attempt string) {
	if i := slices.Index(s.Nodes, owner); i >= 0 {
		s.agents[i].Cancel(id, attempt)
	}
}

// Rows are the engines as an agent would gossip them.
func (s *Standalone) Rows() []fleet.Row {
	now := time.Now()
	rows := make([]fleet.Row, len(s.agents))
	for i, a := range s.agents {
		rows[i] = s.policies.Row(a.Row(now))
	}
	return rows
}

// spoken are agents as their gRPC face sees them.
func spoken(agents []*agent.Agent) []control.Agent {
	all := make([]control.Agent, len(agents))
	for i, a := range agents {
		all[i] = a
	}
	return all
}

func (s *Standalone) health() []health.Health {
	all := make([]health.Health, len(s.agents))
	for i, a := range s.agents {
		all[i] = a.Health()
	}
	return all
}

// ready says whether the gateway is open and an engine takes work, or why not. It
// agrees with what gRPC health says.
func (s *Standalone) ready() (bool, string) {
	for _, ready := range []func() (bool, string){s.gateway.Ready, s.policies.Ready} {
		if ok, why := ready(); !ok {
			return false, why
		}
	}
	var why []string
	for i, h := range s.health() {
		if h.Ready {
			return true, ""
		}
		why = append(why, fmt.Sprintf("engine %s: %s", s.Nodes[i], h.Why(time.Now())))
	}
	return false, strings.Join(why, "; ")
}

// cause is why the engine of an agent takes no work.
func (s *Standalone) cause(node string) string {
	if i := slices.Index(s.Nodes, node); i >= 0 {
		return s.agents[i].Health().Why(time.Now())
	}
	return ""
}

func (s *Standalone) state() any {
	engines := map[string]any{}
	for i, a := range s.agents {
		engines[s.Nodes[i]] = a.DebugState()
	}
	return map[string]any{"apiVersion": "penstock/v1", "policy": s.policies.State(), "gateway": s.gateway.DebugState(), "engines": engines}
}

// Address is where the OpenAI API listens.
func (s *Standalone) Address() string { return s.listener.Addr().String() }

// AdminAddress is where metrics, probes and state are.
func (s *Standalone) AdminAddress() string { return s.adminListener.Addr().String() }

// GRPCAddress is where health, state and drain are.
func (s *Standalone) GRPCAddress() string { return s.grpcListener.Addr().String() }

// Policy is the one in force.
func (s *Standalone) Policy() *policy.Policy { return s.policies.Current() }

// PolicyState says where the policy comes from and what is wrong with it.
func (s *Standalone) PolicyState() source.State { return s.policies.State() }

// Reload reads the policy again, as SIGHUP does; the error is what was refused.
func (s *Standalone) Reload() error { return s.again.Reload() }
