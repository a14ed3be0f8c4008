package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/show"
	"penstock/doctor"
	"penstock/lane"
	"penstock/queue/isolation"
	"penstock/queue/rocketmq"
	"penstock/queue/rocketmq/proxy"
)

func newSimLanes() *cobra.Command {
	cfg := isolation.DefaultConfig()
	threads := 50
	var output string
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "Measure on a real RocketMQ how much limited lanes disturb free ones",
		Long: `sim lanes publishes to all lanes at a fixed rate (open loop), limits some of them to one message in --limit,
and measures the others: from when a message was due to be published until its handler runs. A delivery that comes
too early for its lane's limit is suspended, as an agent does, or slept through in its handler, to compare. Columns
"kept" and "slower" compare with the case of the same round in which no lane is limited; all figures are medians
of the rounds, whose cases run in an order drawn from --seed.

What it shows: with Suspend the free lanes keep their throughput and their p99; with a sleep they do not where
there are fewer threads than limited lanes. Exit code 1 when a target does not hold, as on a broker without
deploy/rocketmq's settings or a machine that is busy with other things; 2 when topic or group are not there or
are wrong, with the lines that make them; 4 when the proxy is not reachable.

It needs a topic and a group of its own, lanes get names of their own, and nothing is left in them.`,
		Example: `  penstock doctor --print-setup --topic penstock-sim --group penstock-sim-agents   # run its two mqadmin lines once
  penstock sim lanes --rocketmq broker:8081
  penstock sim lanes --rocketmq broker:8081 --rounds 1 --span 5s -o json`,
	}
	settings := pflag.NewFlagSet("lanes", pflag.ContinueOnError)
	flags.AddBackends(settings)
	f := cmd.Flags()
	for _, name := range []string{"rocketmq", "topic", "group", "rocketmq-credentials-file", "rocketmq-ca-file"} {
		flag := settings.Lookup(name)
		if own := map[string]string{"topic": "penstock-sim", "group": "penstock-sim-agents"}[name]; own != "" {
			flag.DefValue = own
			_ = flag.Value.Set(own)
		}
		f.AddFlag(flag)
	}
	f.Lookup("group").Usage = "RocketMQ consumer group, bound to --topic; no agent's"
	f.IntVar(&cfg.Lanes, "lanes", cfg.Lanes, "lanes")
	f.IntVar(&threads, "threads", threads, "consumer threads; two of the cases with a sleep have four for five limited lanes")
	f.DurationVar(&cfg.Limit, "limit", cfg.Limit, "a limited lane starts one message in it")
	f.Float64Var(&cfg.Rate, "rate", cfg.Rate, "messages per second and lane; more than the limit lets through")
	f.DurationVar(&cfg.Span, "span", cfg.Span, "length of each case, after 2s that are not counted")
	f.IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "rounds of all cases")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of the order of cases, of who is limited and of the moments of publishing")
	f.StringVarP(&output, "output", "o", "table", "table or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output != "table" && output != "json" {
			return exit.Usagef("-o %q: want table or json", output)
		}
		back, err := flags.ReadBackends(settings)
		if err != nil {
			return exit.Usagef("%w", err)
		}
		cfg.Cases = isolation.Plan(cfg.Lanes, threads)
		if err := cfg.Validate(); err != nil {
			return exit.Usagef("%w", err)
		}
		rows, err := simLanes(cmd.Context(), cfg, back.RocketMQ, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return writeSimLanes(cmd.OutOrStdout(), cfg, rows, output)
	}
	return cmd
}

// simLanes runs the experiment on a broker, with a producer of its own and a consumer
// for each case, as a gateway and an agent have them.
func simLanes(ctx context.Context, cfg isolation.Config, broker rocketmq.Config, progress io.Writer) ([]isolation.Row, error) {
	if err := simLanesReady(ctx, broker); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(progress, &slog.HandlerOptions{Level: slog.LevelWarn}))
	broker.Secret = []byte(rand.Text()) // lanes that nobody else has
	broker.PublishTimeout = 10 * time.Second
	producer, err := rocketmq.NewProducer(broker, log, prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	open := func(threads int, lanes []lane.Key) (isolation.Consumer, error) {
		cfg := broker
		cfg.Concurrency = threads
		consumer, err := rocketmq.NewConsumer(cfg, log, prometheus.NewRegistry())
		if err != nil {
			return nil, err
		}
		var entries []lane.Entry
		for _, key := range lanes {
			entries = append(entries, lane.Entry{Key: key, Width: 1})
		}
		consumer.SetLanes(entries)
		return consumer, nil
	}
	done := func(round int, c isolation.Case, f isolation.Figures) {
		_, _ = fmt.Fprintf(progress, "round %d of %d  %-24v free lanes p50 %v p99 %v, %.2f messages/s each\n",
			round, cfg.Rounds, c, milliseconds(f.P50), milliseconds(f.P99), f.FreeRate)
	}
	experiment, err := isolation.New(cfg, isolation.Broker{Publish: producer.Publish, Open: open}, done)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	cases := time.Duration(cfg.Rounds * len(cfg.Cases))
	_, _ = fmt.Fprintf(progress, "%d cases, about %v\n", cases, (cfg.Within() + cases*perCase).Round(10*time.Second))
	producing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group errgroup.Group
	group.Go(func() error { return producer.Run(producing) })
	rows, err := experiment.Run(ctx)
	stop()
	return rows, errors.Join(err, group.Wait())
}

// perCase is what start, drain and stop of a consumer take.
const perCase = 5 * time.Second

// simLanesReady says what is missing at the broker and how to make it.
func simLanesReady(ctx context.Context, cfg rocketmq.Config) error {
	ctx, cancel := context.WithTimeout(ctx, doctorWithin)
	defer cancel()
	r, err := proxy.Inspect(ctx, cfg.Config)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	lines := strings.Join(doctor.NewSetup(doctor.Config{Topic: cfg.Topic, Group: cfg.Group}).MQAdmin, "\n")
	switch types := strings.Join(r.Types, ","); {
	case !r.Route.OK() && r.Route.Code == "":
		return exit.With(exit.Unreachable, fmt.Errorf("no RocketMQ proxy at %s (%s). Start one in cluster mode, or set --rocketmq; see: penstock doctor", cfg.Endpoint, r.Route))
	case !r.Route.OK():
		return exit.Usagef("--topic %s: %s. Make topic and group with these, and wait some seconds:\n%s", cfg.Topic, r.Route.Code, lines)
	case types != "LITE":
		return exit.Usagef("--topic %s takes %s messages, want LITE. Choose another, or make topic and group with:\n%s", cfg.Topic, types, lines)
	case !r.Group.OK():
		return exit.Usagef("--group %s: %s. Make topic and group with:\n%s", cfg.Group, r.Group, lines)
	case !r.Bind.OK() || !r.Ordered:
		return exit.Usagef("--group %s is not an ordered lite group of --topic %s (%s). Make topic and group with:\n%s", cfg.Group, cfg.Topic, r.Bind, lines)
	}
	return nil
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// writeSimLanes prints all rows; an error says how many missed their target.
func writeSimLanes(w io.Writer, cfg isolation.Config, rows []isolation.Row, output string) error {
	missed := 0
	for _, r := range rows {
		if _, holds := r.Target(cfg.Rate); !holds {
			missed++
		}
	}
	var err error
	if output == "json" {
		err = show.JSON(w, map[string]any{
			"apiVersion": "penstock/v1", "ok": missed == 0, "lanes": cfg.Lanes, "rate": cfg.Rate, "limit": cfg.Limit.String(),
			"span": cfg.Span.String(), "seed": cfg.Seed, "rows": rows,
		})
	} else {
		err = tableSimLanes(w, cfg, rows)
	}
	if err == nil && missed > 0 {
		err = fmt.Errorf("sim lanes: %d of %d cases missed their target", missed, len(rows))
	}
	return err
}

func tableSimLanes(w io.Writer, cfg isolation.Config, rows []isolation.Row) error {
	_, _ = fmt.Fprintf(w, "%d lanes at %g messages/s each, limit %v, %d rounds of %v\n\n", cfg.Lanes, cfg.Rate, cfg.Limit, cfg.Rounds, cfg.Span)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "limited\thow\tthreads\tfree lanes: p50\tp99\tmax\tper lane\tkept\tslower\tlimited lanes: per lane\tdeliveries\ttarget\t")
	for _, r := range rows {
		limited, target := "-", "-"
		if r.Limited > 0 {
			limited = fmt.Sprintf("%.2f/s", r.LimitRate)
		}
		if want, holds := r.Target(cfg.Rate); want != "" {
			target = want + map[bool]string{true: ": holds", false: ": MISSED"}[holds]
		}
		_, _ = fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\t%s\t%.2f/s\t%.0f %%\t%.1fx\t%s\t%.0f/s\t%s\t\n", r.Limited, r.How, r.Threads,
			milliseconds(r.P50), milliseconds(r.P99), milliseconds(r.Max), r.FreeRate, 100*r.Kept, r.Slower, limited, r.Deliveries, target)
	}
	return table.Flush()
}
