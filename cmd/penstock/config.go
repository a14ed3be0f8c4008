package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, show and write the configuration",
		Example: `  penstock config example > penstock.yaml
  penstock config check penstock.yaml
  penstock config show --origin`,
	}
	cmd.AddCommand(newConfigCheck(), newConfigShow(), newConfigExample())
	return cmd
}

func newConfigCheck() *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Check a file without starting anything",
		Example: "  penstock config check /etc/penstock/config.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			standalone := newStandalone()
			if _, err := config.Load(standalone.Flags(), args[0], func(string) (string, bool) { return "", false }); err != nil {
				return exit.Usagef("%w", err)
			}
			if _, err := flags.Read(standalone.Flags()); err != nil {
				return exit.Usagef("%s: %w", args[0], err)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", args[0])
			return err
		},
	}
}

func newConfigShow() *cobra.Command {
	// The command takes the settings of standalone as flags, so that one can see
	// what a command line would do.
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Print the merged configuration of standalone",
		Example: "  penstock config show --origin\n  PENSTOCK_SLO_TTFT=1s penstock config show --origin --listen :8080",
	}
	settings := newStandalone().Flags()
	cmd.Flags().AddFlagSet(settings)
	origin := cmd.Flags().Bool("origin", false, "say where each value comes from")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		file, _ := cmd.Flags().GetString("config")
		origins, err := config.Load(settings, config.Find(file, os.LookupEnv), os.LookupEnv)
		if err != nil {
			return exit.Usagef("%w", err)
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), config.Show(settings, origins, *origin))
		return err
	}
	return cmd
}

func newConfigExample() *cobra.Command {
	return &cobra.Command{
		Use:     "example",
		Short:   "Print a file with every key at its default",
		Example: "  penstock config example > penstock.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Example(newStandalone().Flags()))
			return err
		},
	}
}
