package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
)

// version is set at release with -ldflags "-X main.version=…".
var version = "0.1.0-dev"

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  penstock version\n  penstock version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := map[string]string{"apiVersion": "penstock/v1", "version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "commit": "unknown"}
			if build, ok := debug.ReadBuildInfo(); ok {
				for _, setting := range build.Settings {
					if setting.Key == "vcs.revision" {
						info["commit"] = setting.Value
					}
				}
			}
			switch output {
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock %s (commit %s, %s, %s)\n", info["version"], info["commit"], info["go"], info["platform"])
				return err
			}
			return exit.Usagef("-o %q: want text or json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
