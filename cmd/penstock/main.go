// Command penstock meters prompts into GPUs: see "penstock --help".
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/penstock/exit"
	"penstock/config"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program. The first SIGINT or SIGTERM ends ctx, which drains;
// the second ends the process at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "penstock: %v\n", err)
	}
	return exit.Code(err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Admission control for LLM inference on your own GPUs",
		Long: `penstock keeps requests waiting outside the engine and lets in what it can finish in time.

Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 unhealthy, 4 not reachable.`,
		Example: `  penstock standalone --engine http://127.0.0.1:8000   # in front of a running vLLM
  penstock standalone --engine sim                     # in front of the built-in simulated engine
  penstock demo                                        # the same overload with and without penstock`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		hint := ""
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			if near := config.Nearest(unknown.GetSpecifiedName(), cmd.Flags()); near != "" {
				hint = fmt.Sprintf(", did you mean --%s?", near)
			}
		}
		return exit.Usagef("%w%s See: %s --help", err, cmp.Or(hint, "."), cmd.CommandPath())
	})
	root.AddCommand(newStandalone(), newGateway(), newAgent(), newSim(), newDemo(), newConfig(), newPolicy(), newClassify(), newKeys(), newDoctor(), newStatus(), newDrain(), newResume(), newReload(), newVersion())
	for _, cmd := range root.Commands() {
		strictArgs(cmd)
	}
	root.RunE = func(cmd *cobra.Command, args []string) error { return cmd.Help() }
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += fmt.Sprintf(", did you mean %q?", near[0])
		}
		return exit.Usagef("%s. See: penstock --help", text)
	}
	root.SuggestionsMinimumDistance = 2
	return root
}

// strictArgs turns argument errors of cmd and those below it into usage errors,
// and makes a group without a subcommand print its help.
func strictArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return exit.Usagef("%w. See: %s --help", err, cmd.CommandPath())
		}
		return nil
	}
	if cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		strictArgs(sub)
	}
}
