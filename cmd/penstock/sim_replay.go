package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
	"penstock/sim"
	"penstock/sim/report"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// replayNames are what the command's flags name.
type replayNames struct {
	workloads, profiles, policies []string
	burst, output                 string
	every                         bool // setting, not only the best
}

// replayHelp wants the workloads and the profiles.
const replayHelp = `sim replay sends the requests of a trace at simulated engines, once per policy and load, and counts the good ones:
first token within 2s, at most 100ms per token, no pause above 1s. Time is virtual, so an hour takes seconds, and the
same --seed gives the same figures. Load 1 is what the engine does of this workload when it never waits for work and
lengths are known. A policy with settings is shown with its best one at each load, so that none loses by its setting.
Figures are medians over --shifts places in the trace; requests that arrive within --warm are not counted.

Policies (penstock's own run the code of production):
  forecast, law-watermark   penstock under scheduler.law forecast and watermark
  oracle                    penstock under forecast, told all lengths
  forecast-alone, law-watermark-alone   the same with agents that pass no head on to a free peer
  none                      everything goes to vLLM at once
  concurrency, concurrency-even   at most N in each engine; refuses whose first token would come too late; -even: by penstock's
                            own rule, which does not count the own prefill and so prefers no prompt length
  bounded-queue             at most N in each engine, the others wait at most T
  watermark, watermark-ttl  vLLM's gauges: KV usage below 0.8, again below 0.7, fewer than 5 waiting; with a longest wait
  gauge-shed, gauge-shed-even   KV usage below 0.8 and fewer than 5 waiting; refuses as concurrency and concurrency-even do
  vllm-caps                 vLLM's own --max-num-queued-tokens and --max-num-queued-reqs, with --watermark 0.05
  token-bucket              a rate of tokens, a share of what the engine can do
  backpressure              at most N in each engine without a first token

With more than one workload or load there are rows NAME-fixed too: the one setting that does best over all of a profile's.
Engines keep the prompts' blocks of 512 tokens that a trace's hash_ids name, as vLLM's prefix cache does.
With --burst each policy also runs without it: recover_seconds is the time from its end until 95 %% as many of the same
requests are good. With the workload tenants each policy also runs without the abuser.
The workload tiers wants --load 0.5 --span 10m: low_tier is what becomes of its backlog.
sim compare makes ratios of JSON rows.

A profile file is YAML: engines or speeds (of each engine, such as [1, 0.4]), kv_tokens, block_size, max_model_len, max_num_seqs, max_num_batched_tokens, and the
time of a step: step + per_prefill_token x prompt tokens + per_prefill_context x thousands of tokens before each of them
+ per_sequence x sequences that decode + per_kv_token x KV tokens.
A trace file is CSV (columns TIMESTAMP, ContextTokens, GeneratedTokens) or JSON lines (timestamp in ms, input_length,
output_length, and hash_ids if there are).

Included: %s on %s.`

func newSimReplay() *cobra.Command {
	cfg := sim.DefaultConfig()
	var names replayNames
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Replay a trace in virtual time and compare ways to let requests in",
		Long:  fmt.Sprintf(replayHelp, strings.Join(traces.Workloads(), ", "), strings.Join(world.Profiles(), ", ")),
		Example: `  penstock sim replay
  penstock sim replay --trace mooncake --profile prefill-bound --policy all --load 1,2 -o json
  penstock sim replay --trace my.csv --profile my-gpu.yaml --policy forecast,vllm-caps -o svg > goodput.svg`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runs, err := names.load(cfg)
			if err != nil {
				return err
			}
			rows, err := replay(cmd.Context(), runs, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if !names.every {
				rows = append(sim.Best(rows), sim.Carried(rows)...)
			}
			return writeReplay(cmd.OutOrStdout(), cfg, rows, &names)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&names.workloads, "trace", []string{"conv"}, "workloads: "+strings.Join(traces.Workloads(), ", ")+", or trace files")
	f.StringSliceVar(&names.profiles, "profile", []string{"kv-bound"}, "engines: "+strings.Join(world.Profiles(), ", ")+", or YAML files")
	f.StringSliceVar(&names.policies, "policy", []string{"forecast", "law-watermark", "oracle", "none", "watermark-ttl", "vllm-caps"}, "all, or some of: "+strings.Join(sim.Policies(), ", "))
	f.Float64SliceVar(&cfg.Loads, "load", cfg.Loads, "offered requests over what the engines can do")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of everything drawn")
	f.IntVar(&cfg.Shifts, "shifts", cfg.Shifts, "places in the trace to begin at")
	f.DurationVar(&cfg.Warm, "warm", cfg.Warm, "virtual time before figures are taken")
	f.DurationVar(&cfg.Span, "span", cfg.Span, "virtual time of which they are")
	f.DurationVar(&cfg.Clients.Patience, "patience", cfg.Clients.Patience, "clients go away that have no first token by then; 0 = they wait for ever")
	f.IntVar(&cfg.Clients.Retries, "retries", cfg.Clients.Retries, "times a client comes back: when Retry-After says, else after 1, 2, 4 s and so on")
	f.Float64Var(&cfg.Clients.Obey, "obey", cfg.Clients.Obey, "share of them that come back when Retry-After says")
	f.StringVar(&names.burst, "burst", "", "times and how long, such as 3x60s: more requests than --load, from a quarter of --span on")
	f.BoolVar(&cfg.Prefix, "prefix-cache", cfg.Prefix, "the engines' prefix cache, for traces with hash_ids")
	f.IntVar(&cfg.Width, "lane-width", cfg.Width, "lines of a tenant's lane, each with one head out at a time: 1 as in memory, 32 as with RocketMQ")
	f.BoolVar(&names.every, "all-settings", false, "a row for each setting and not only for the best: what sim compare wants")
	f.StringVarP(&names.output, "output", "o", "table", "table, json or svg")
	return cmd
}

// load makes a run for each workload on each profile.
func (n *replayNames) load(cfg sim.Config) (runs []sim.Config, err error) {
	if n.output != "table" && n.output != "json" && n.output != "svg" {
		return nil, exit.Usagef("-o %q: want table, json or svg", n.output)
	}
	if cfg.Policies, err = sim.FindPolicies(n.policies); err != nil {
		return nil, exit.Usagef("--policy: %w", err)
	}
	if cfg.Burst, err = sim.ParseBurst(n.burst); err != nil {
		return nil, exit.Usagef("--burst: %w", err)
	}
	for _, workload := range n.workloads {
		if cfg.Workload, err = traces.Load(workload); err != nil {
			return nil, exit.Usagef("--trace: %w", err)
		}
		for _, profile := range n.profiles {
			if cfg.Profile, err = world.LoadProfile(profile); err != nil {
				return nil, exit.Usagef("--profile: %w", err)
			}
			if err := cfg.Validate(); err != nil {
				return nil, exit.Usagef("%w", err)
			}
			runs = append(runs, cfg)
		}
	}
	return runs, nil
}

// replay runs them one after another and tells about every five seconds how far it is.
func replay(ctx context.Context, runs []sim.Config, progress io.Writer) (rows []sim.Row, err error) {
	for i, cfg := range runs {
		begun := time.Now()
		var mu sync.Mutex // guards said and progress
		said := begun
		more, err := sim.Run(ctx, cfg, func(done, all int) {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); done == all || now.Sub(said) > 5*time.Second {
				said = now
				_, _ = fmt.Fprintf(progress, "%s on %s (%d of %d): %d of %d replays, %v\n",
					cfg.Workload.Name, cfg.Profile.Name, i+1, len(runs), done, all, now.Sub(begun).Round(100*time.Millisecond))
			}
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func writeReplay(w io.Writer, cfg sim.Config, rows []sim.Row, names *replayNames) error {
	switch names.output {
	case "json":
		return show.JSON(w, map[string]any{
			"apiVersion": "penstock/v1", "seed": cfg.Seed, "shifts": cfg.Shifts, "warm": cfg.Warm.String(), "span": cfg.Span.String(),
			"patience": cfg.Clients.Patience.String(), "retries": cfg.Clients.Retries, "obey": cfg.Clients.Obey, "burst": names.burst, "prefix_cache": cfg.Prefix, "lane_width": cfg.Width, "rows": rows,
		})
	case "svg":
		return report.SVG(w, rows)
	}
	return report.Table(w, rows)
}
