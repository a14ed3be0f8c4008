package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/sim"
	"penstock/sim/report"
)

func newSimCompare() *cobra.Command {
	policy, output := "forecast", "ratios"
	cmd := &cobra.Command{
		Use:   "compare FILE...",
		Short: "Make ratios between policies of sim replay's JSON",
		Long: `sim compare reads what sim replay -o json wrote, one or several files, and prints the goodput of one policy over that of
each other one: the geometric mean over workloads and profiles, the worst cell and how many are below 0.99. Then the
targets penstock is held to, and the cells where it loses most.

Ratios are in requests; in requests where the prompt's own prefill is not counted ("own"); and in tokens of those.
Even-handed is "own", or tokens where one of the two lets long prompts in less often than short ones (worst quartile below 0.8 of the
best): a gain bought by refusing long prompts is none. With rows of --all-settings the other policy has in each unit and
cell its best setting, and as NAME-fixed the one setting that is best over all workloads and loads of a profile.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			var rows []sim.Row
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					return exit.Usagef("%w", err)
				}
				var from struct{ Rows []sim.Row }
				if err := json.Unmarshal(text, &from); err != nil {
					return exit.Usagef("%s: %w", file, err)
				}
				if len(from.Rows) == 0 {
					return exit.Usagef("%s has no rows: want what sim replay -o json writes", file)
				}
				rows = append(rows, from.Rows...)
			}
			show := func(w io.Writer, rows []sim.Row) error { return report.Compare(w, rows, policy) }
			switch output {
			case "ratios":
			case "table":
				show, rows = report.Goodput, sim.Best(rows)
			case "svg":
				show, rows = report.SVG, sim.Best(rows)
			default:
				return exit.Usagef("-o %q: want ratios, table or svg", output)
			}
			if err := show(cmd.OutOrStdout(), rows); err != nil {
				return fmt.Errorf("cannot write: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&policy, "policy", policy, "the one to hold against the others")
	cmd.Flags().StringVarP(&output, "output", "o", output, "ratios; or table, or svg: the goodput of each policy's best setting")
	return cmd
}
