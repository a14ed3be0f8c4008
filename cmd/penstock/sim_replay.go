package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/sim"
)

func newSimReplay() *cobra.Command {
	cfg := sim.DefaultConfig()
	var workloads, profiles, policies []string
	var output string
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Replay a trace in virtual time and compare ways to let requests in",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" && output != "svg" {
				return usage("-o %q: want table, json or svg", output)
			}
			var err error
			if cfg.Policies, err = sim.FindPolicies(policies); err != nil {
				return usage("--policy: %w", err)
			}
			var rows []sim.Row
			for _, name := range workloads {
				if cfg.Workload, err = sim.Load(name); err != nil {
					return usage("--trace: %w", err)
				}
				for _, name := range profiles {
					if cfg.Profile, err = sim.LoadProfile(name); err != nil {
						return usage("--profile: %w", err)
					}
					if err := cfg.Validate(); err != nil {
						return usage("%w", err)
					}
					begun, said := time.Now(), time.Now()
					more, err := sim.Run(cmd.Context(), cfg, func(done, all int) {
						if done == all {
							said = time.Now()
						}
						_ = begun
					})
					if err != nil {
						return err
					}
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s on %s: %v\n", cfg.Workload.Name, cfg.Profile.Name, said.Sub(begun).Round(time.Millisecond))
					rows = append(rows, more...)
				}
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), map[string]any{"rows": rows})
			}
			return sim.Table(cmd.OutOrStdout(), rows)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&workloads, "trace", []string{"conv"}, "workloads: "+strings.Join(sim.Workloads(), ", ")+", or trace files")
	f.StringSliceVar(&profiles, "profile", []string{"kv-bound"}, "engines: "+strings.Join(sim.Profiles(), ", ")+", or YAML files")
	f.StringSliceVar(&policies, "policy", []string{"forecast", "none", "watermark-ttl"}, "all, or some of: "+strings.Join(sim.Policies(), ", "))
	f.Float64SliceVar(&cfg.Loads, "load", cfg.Loads, "offered requests over what the engines can do")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of everything drawn")
	f.IntVar(&cfg.Shifts, "shifts", cfg.Shifts, "places in the trace to begin at; figures are the median over them")
	f.DurationVar(&cfg.Warm, "warm", cfg.Warm, "virtual time that is not measured")
	f.DurationVar(&cfg.Span, "span", cfg.Span, "virtual time that is")
	f.DurationVar(&cfg.Clients.Patience, "patience", cfg.Clients.Patience, "clients go away without a first token by then; 0 = never")
	f.IntVar(&cfg.Clients.Retries, "retries", cfg.Clients.Retries, "times a client comes back, at Retry-After or after 1, 2, 4 s")
	f.StringVarP(&output, "output", "o", "table", "table, json or svg")
	return cmd
}
