package stack

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/admin"
	"penstock/agent"
	"penstock/agent/control"
	"penstock/agent/health"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/neighbours"
	"penstock/fleet"
	"penstock/lane"
	"penstock/policy"
	"penstock/queue/rocketmq"
	registryredis "penstock/registry/redis"
	responseredis "penstock/response/redis"
	"penstock/systemd"
)

// RunAgent wires an agent to the fleet's broker and store, and runs it.
func RunAgent(ctx context.Context, opts *flags.Options, cfg agent.Config, back *flags.Backends, gossips *neighbours.Options, log *slog.Logger) error {
	ls, err := listenAll(
		listenerFlag{"--grpc", opts.GRPC}, listenerFlag{"--admin", opts.Admin}, listenerFlag{"--metrics", opts.Metrics})
	if err != nil {
		return err
	}
	defer closeAll(ls)
	if cfg.GRPC == "" {
		cfg.GRPC = announced(ls[0].Addr().String(), gossips)
	}
	metrics := newMetrics()
	rules, err := newPolicies(opts, &back.Policy, log, metrics)
	if err != nil {
		return err
	}
	cfg.Scheduler.Tiers = rules.Tiers()
	var node *agent.Agent
	others, err := neighbours.New(gossips,
		func(now time.Time) fleet.Row { return rules.Row(node.Row(now)) }, func(id, attempt string) { node.Cancel(id, attempt) }, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	defer others.Close()
	again := newReloader(rules, others, opts.Settings)
	back.Registry.Cancel = func(owner, id, attempt string) {
		if owner == cfg.Node || owner == "" {
			node.Cancel(id, attempt)
		}
	}
	back.Registry.Rank, back.Registry.Pace, back.Registry.Bounds = rules.Rank, rules.Pace, rules.Bounds
	records, err := registryredis.New(back.Registry, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	mail, err := responseredis.NewWriter(back.Response, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	back.RocketMQ.Clock, back.RocketMQ.Node = records.Offset, cfg.Node
	var subscribed atomic.Pointer[[]lane.Key]
	back.RocketMQ.Confirmed = func(lanes []lane.Key) {
		subscribed.Store(&lanes)
		confirm, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := records.Confirm(confirm, cfg.Node, lanes); err != nil {
			log.Debug("lanes not confirmed", "err", err)
		}
	}
	lanes, err := rocketmq.NewConsumer(back.RocketMQ, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	node, err = agent.New(cfg, agent.Deps{
		Records: records, Directory: records, Consumer: lanes, Append: mail.Append, Flush: mail.Flush,
		Peers: others.Rows, Backlog: records.Backlog, LaneLimit: rules.Concurrency,
		Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"node": cfg.Node}, metrics), Log: log,
	})
	if err != nil {
		return exit.Usagef("%w", err)
	}
	rules.OnChange(func(p *policy.Policy) { node.SetTiers(p.Tiers) })
	metrics.MustRegister(newLaneGauges(records.Backlog, func() []health.Health { return []health.Health{node.Health()} }, back.RocketMQ.Concurrency, rules.Current))
	face, err := control.New(opts.GRPCKeys, control.Deps{
		Agents: []control.Agent{node}, Engines: records.Engines, Peers: others.Rows, Lookup: records.Lookup, Backlog: records.Backlog, Longest: records.Longest, Width: back.RocketMQ.Concurrency,
		Limits: rules.Limits, Policy: rules.Control, Gateways: others.Gateways, Metrics: metrics, Log: log,
	})
	if err != nil {
		return exit.Usagef("%w", err)
	}
	parts := func(why func(health.Health) string) readiness {
		return readiness{
			"engine":   func() (bool, string) { h := node.Health(); return h.Ready, why(h) },
			"redis":    records.Ready,
			"rocketmq": lanes.Ready,
			"mailbox":  func() (bool, string) { return mail.Ready(), "redis streams are away" },
			"policy":   rules.Ready,
		}
	}
	ready := parts(func(h health.Health) string { return h.Why(time.Now()) })
	logged := parts(func(h health.Health) string { return h.Reason.String() }) // a time would be news every second
	private, public, err := newAdmins("agent", admin.Deps{
		Gatherer: metrics, Live: alive, Ready: ready.all, Started: func() bool { return true }, Reload: again.page,
		State: func() any {
			return map[string]any{
				"apiVersion": "penstock/v1", "parts": ready.each(), "policy": rules.State(), "lanes": lanesShown(subscribed.Load()),
				"engines": map[string]any{cfg.Node: node.DebugState()},
			}
		}, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("agent starts", "node", cfg.Node, "grpc", cfg.GRPC, "engine", cfg.Engine.URL, "rocketmq", back.RocketMQ.Endpoint, "redis", fmt.Sprint(back.Response.Addr))
	return inOrder(ctx,
		[]part{func(ctx context.Context) error {
			defer context.AfterFunc(ctx, face.Drain)()
			return node.Run(ctx)
		}},
		[]part{
			mail.Run, records.Run, others.Run, rules.Run, watchReady(log, logged.all),
			(&systemd.Service{Ready: logged.all, Progress: node.Progress, Reload: again.Reload, Stopping: ctx.Done(), Log: log}).Run,
			func(ctx context.Context) error { return records.Watch(ctx, lanes.SetLanes) },
			func(ctx context.Context) error { return face.Serve(ctx, ls[0]) },
			func(ctx context.Context) error { return private.Serve(ctx, ls[1]) },
			func(ctx context.Context) error { return public.Serve(ctx, ls[2]) },
		})
}

// announced is the address of gRPC that the engine directory names where none is
// given: what listen is to others. On loopback it is that only to processes on this
// host, which gossip says whether they are all.
func announced(listen string, gossips *neighbours.Options) string {
	host, port, err := net.SplitHostPort(listen)
	gossip := gossips.Host()
	leaves := gossip != "" && !flags.Loopback(net.JoinHostPort(gossip, port))
	switch {
	case err != nil || flags.Loopback(listen) && leaves:
		return ""
	case !flags.Unspecified(host):
		return listen
	case leaves && !flags.Unspecified(gossip):
		return net.JoinHostPort(gossip, port)
	}
	route, err := net.Dial("udp", "192.0.2.1:9") // sends nothing
	if err != nil {
		return ""
	}
	defer func() { _ = route.Close() }()
	host, _, _ = net.SplitHostPort(route.LocalAddr().String())
	return net.JoinHostPort(host, port)
}

// lanesShown is how many lanes were subscribed after the last addition, and the first
// 100 of them.
func lanesShown(subscribed *[]lane.Key) any {
	shown := struct {
		Count int      `json:"count"`
		First []string `json:"first"`
	}{First: []string{}}
	if subscribed != nil {
		shown.Count = len(*subscribed)
		for _, k := range (*subscribed)[:min(len(*subscribed), 100)] {
			shown.First = append(shown.First, k.String())
		}
	}
	return shown
}
