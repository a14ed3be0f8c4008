package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

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

func newGateway() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "The client side of a fleet: OpenAI API in, lanes on RocketMQ, records in Redis",
		Long: `gateway serves the OpenAI API for a fleet of agents that share a RocketMQ broker and a Redis.
It starts with either of them away, says so in /readyz and the log, and comes up when they do.`,
		Example: `  penstock gateway --rocketmq broker:8081 --redis redis:6379
  penstock gateway --rocketmq broker:8081 --redis redis:6379 --listen 0.0.0.0:4780 --api-keys keys.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.Load(cmd.Flags(), newGateway)
			if err != nil {
				return err
			}
			back, err := flags.ReadBackends(cmd.Flags())
			if err != nil {
				return exit.Usagef("%w", err)
			}
			host, _ := os.Hostname()
			address, _ := cmd.Flags().GetString("gossip")
			others, err := neighbours.Read(cmd.Flags(), "gateway@"+host+"/"+address)
			if err != nil {
				return exit.Usagef("%w", err)
			}
			return runGateway(cmd.Context(), opts, back, others, flags.NewLogger(cmd.ErrOrStderr(), opts))
		},
	}
	f := cmd.Flags()
	f.String("listen", "127.0.0.1:4780", "address of the OpenAI API")
	f.String("admin", "127.0.0.1:4785", "address of metrics, probes and profiles; keep it on loopback")
	f.String("metrics", "127.0.0.1:4787", "address of metrics and probes only, for all interfaces")
	flags.AddDoor(f)
	flags.AddTiers(f)
	flags.AddPolicy(f, true)
	flags.AddCommon(f)
	flags.AddBackends(f)
	neighbours.Flags(f, "127.0.0.1:4786")
	f.String("grpc-ca", "", `PEM file with the authority of agents' certificates, "system" for the system's: a request whose client left is aborted at its agent directly, too; without it at agents on this host alone`)
	f.String("grpc-client-cert", "", "PEM file with the certificate that this gateway shows agents")
	f.String("grpc-client-key", "", "PEM file with its key")
	return cmd
}

// runGateway wires a gateway to the fleet's broker and store, and runs it.
func runGateway(ctx context.Context, opts *flags.Options, back *flags.Backends, gossips *neighbours.Options, log *slog.Logger) error {
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

func alive() (bool, string) { return true, "" }

// newAdmins makes the loopback server and the one for all interfaces.
func newAdmins(role string, deps admin.Deps) (private, public *admin.Server, err error) {
	cfg := admin.DefaultConfig()
	cfg.Name = role
	if private, err = admin.New(cfg, deps); err != nil {
		return nil, nil, err
	}
	cfg.Debug = false
	public, err = admin.New(cfg, deps)
	return private, public, err
}

// watchReady logs when readiness changes.
func watchReady(log *slog.Logger, ready func() (bool, string)) part {
	return func(ctx context.Context) error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		was := ""
		for {
			select {
			case <-tick.C:
				logReady(log, &was, ready)
			case <-ctx.Done():
				return nil
			}
		}
	}
}
