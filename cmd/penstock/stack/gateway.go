package stack

import (
	"context"
	"log/slog"
	"time"

	"penstock/admin"
	"penstock/agent/health"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/neighbours"
	"penstock/fleet"
	"penstock/gateway"
	"penstock/gateway/direct"
	"penstock/queue/rocketmq"
	"penstock/reason"
	registryredis "penstock/registry/redis"
	responseredis "penstock/response/redis"
	"penstock/systemd"
)

// RunGateway wires a gateway to the fleet's broker and store, and runs it.
func RunGateway(ctx context.Context, opts *flags.Options, back *flags.Backends, gossips *neighbours.Options, log *slog.Logger) error {
	ls, err := listenAll(
		listenerFlag{"--listen", opts.Listen}, listenerFlag{"--admin", opts.Admin}, listenerFlag{"--metrics", opts.Metrics})
	if err != nil {
		return err
	}
	defer closeAll(ls)
	metrics := newMetrics()
	rules, err := newPolicies(opts, &back.Policy, log, metrics)
	if err != nil {
		return err
	}
	self := func(now time.Time) fleet.Row {
		return rules.Row(fleet.Row{Node: gossips.Gossip.Name, Gateway: true, State: reason.OK, At: now})
	}
	others, err := neighbours.New(gossips, self, nil, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	defer others.Close()
	again := newReloader(rules, others, opts.Settings)
	agents, err := direct.New(opts.Direct, log, metrics)
	if err != nil {
		return exit.Usagef("--grpc-ca, --grpc-client-cert, --grpc-client-key: %w", err)
	}
	back.Registry.Rank, back.Registry.Bounds = rules.Rank, rules.Bounds
	records, err := registryredis.New(back.Registry, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	back.RocketMQ.Clock = records.Offset
	lanes, err := rocketmq.NewProducer(back.RocketMQ, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	mail, err := responseredis.NewReader(back.Response, log, metrics)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	metrics.MustRegister(newLaneGauges(records.Backlog, func() []health.Health { return nil }, 0, rules.Current))
	cfg := gateway.DefaultConfig()
	cfg.Listen = ls[0].Addr().String()
	opts.Door(&cfg)
	door, err := gateway.New(cfg, gateway.Deps{
		Records: records, Directory: records, Publish: lanes.Publish, OpenMailbox: mail.Open, Address: mail.Address,
		Rows: others.Rows, Abort: others.Abort, Direct: agents.Abort, Policy: rules.Current(),
		Metrics: metrics, Log: log,
	})
	if err != nil {
		return err
	}
	rules.OnChange(door.SetPolicy)
	parts := readiness{
		"gateway": door.Ready, "redis": records.Ready, "rocketmq": lanes.Ready,
		"mailbox": func() (bool, string) { return mail.Ready(), "redis streams are away" }, "policy": rules.Ready,
	}
	private, public, err := newAdmins("gateway", admin.Deps{
		Gatherer: metrics, Live: alive, Ready: parts.all, Started: func() bool { return true }, Reload: again.page,
		State: func() any {
			return map[string]any{"apiVersion": "penstock/v1", "parts": parts.each(), "policy": rules.State(), "gateway": door.DebugState()}
		}, Log: log,
	})
	if err != nil {
		return err
	}
	return inOrder(ctx,
		[]part{func(ctx context.Context) error { return door.Serve(ctx, ls[0]) }},
		[]part{
			mail.Run, lanes.Run, records.Run, others.Run, agents.Run, rules.Run, watchReady(log, parts.all),
			(&systemd.Service{Ready: parts.all, Reload: again.Reload, Stopping: ctx.Done(), Log: log}).Run,
			func(ctx context.Context) error { return private.Serve(ctx, ls[1]) },
			func(ctx context.Context) error { return public.Serve(ctx, ls[2]) },
		})
}
