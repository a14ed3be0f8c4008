package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/reload"
	"penstock/cmd/penstock/show"
	"penstock/config"
)

// reloadWithin bounds a reload: its policy is read within 2 s.
const reloadWithin = 10 * time.Second

func newReload() *cobra.Command {
	var admin, output string
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a process read its policy and keys again, and say what changed",
		Long: `reload makes a running standalone, agent or gateway on this host read its policy, gossip's keys and its configuration
file again, and says of each part what became of it: applied, unchanged, refused, or, of settings that hold from the
start to the end, needs restart. What is refused stays as it was. SIGHUP does the same, into the log.

Exit code 1 if something was refused, 4 if nobody answers at --admin.`,
		Example: `  penstock reload                           # standalone or agent
  penstock reload --admin 127.0.0.1:4785    # gateway
  penstock reload -o json | jq '.parts[] | select(.result == "needs restart")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := config.Load(cmd.Flags(), "", os.LookupEnv); err != nil {
				return exit.Usagef("%w", err)
			}
			if err := show.CheckOutput(output); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), reloadWithin)
			defer cancel()
			report, err := reload.Ask(ctx, admin)
			if err != nil {
				return err
			}
			return reload.Write(cmd.OutOrStdout(), report, output)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", "127.0.0.1:4782", "admin address of the process; a gateway's is 127.0.0.1:4785")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
