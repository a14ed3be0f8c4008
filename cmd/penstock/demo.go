package main

import (
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/demo"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
)

func newDemo() *cobra.Command {
	var cfg demo.Config
	var tenants bool
	var output string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "The same overload on two simulated engines, one bare and one behind penstock",
		Long: `demo starts two equal simulated engines, one bare and one behind penstock, sends both the
same requests at twice what an engine can finish, from clients that close after 5 s without a
first token, try again up to 3 times (when told, if told), give up after 15 s, and prints what
came of them.

With --tenants the requests are those of an abuser, who sends half of all and asks again at once
when refused, of a VIP with a tenth, and of two normal tenants with a fifth each, who share an
engine. The policy: the abuser's quota is a twentieth of what the engine can do; the VIP's tier
goes first and wants its first token within 400 ms; the others together take half of the engine's
memory at most. A third engine, also behind penstock, gets the same requests of the VIP and so few
of the others that it is 0.8 times what it can finish in all: what the VIP has without overload.

A request is good when, counted from its last attempt, its first token came within 2 s, its
tokens within 100 ms each in the mean, and no gap was longer than 1 s.`,
		Example: "  penstock demo\n  penstock demo --overload 3 --seed 7\n  penstock demo --tenants\n  penstock demo --tenants -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := show.CheckOutput(output); err != nil {
				return err
			}
			if tenants && !cmd.Flags().Changed("span") {
				cfg.Span = demo.TenantsSpan
			}
			switch {
			case cfg.Span < time.Second || cfg.Span > 10*time.Minute:
				return exit.Usagef("--span %v: want 1s to 10m", cfg.Span)
			case !(cfg.Overload > 0 && cfg.Overload <= 5):
				return exit.Usagef("--overload %v: want more than 0 and at most 5", cfg.Overload)
			case output != "text" && !tenants:
				return exit.Usagef("-o %s: only --tenants has it", output)
			case !tenants:
				return demo.Run(cmd.Context(), cfg, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			report, err := demo.Tenants(cmd.Context(), cfg, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return report.Write(cmd.OutOrStdout(), output)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Span, "span", 30*time.Second, "length of the overload; 1m with --tenants")
	f.Float64Var(&cfg.Overload, "overload", 2, "load as a multiple of what one engine can finish")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of the workload; the same seed sends the same requests")
	f.BoolVar(&tenants, "tenants", false, "four tenants share an engine: an abuser, a VIP, two normal ones")
	f.StringVarP(&output, "output", "o", "text", "text or json; json with --tenants")
	return cmd
}
