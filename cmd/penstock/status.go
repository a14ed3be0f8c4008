package main

import (
	"errors"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/show"
	"penstock/cmd/penstock/status"
	penstockv1 "penstock/proto/penstock/v1"
)

func newStatus() *cobra.Command {
	var c caller
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say in words how the engines are, the worst first",
		Long: `status asks one agent, or standalone, for every engine it knows. The first line is the verdict and names the
worst; then a row per engine. Closed: it starts nothing now, and why. A full engine is closed and healthy.

Where not all go by the same policy a line says who is behind: which one, by the hash that penstock policy check prints.

Exit code 3 if an engine is blind, stuck, down or gone, 4 if nobody answers at --grpc.`,
		Example: `  penstock status
  penstock status --grpc gpu7:4781
  penstock status -o json | jq '.engines[] | select(.gate != "ok")'
  penstock status -o json | jq .behind      # who does not go by the newest policy
  penstock status lanes --top 20
  penstock status request 5d41402abc4b2a76b9719d911017c592`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(show.CheckOutput(output), c.load(cmd.Flags())); err != nil {
				return err
			}
			answer, err := call(cmd.Context(), &c, penstockv1.AgentServiceClient.Cluster, &penstockv1.ClusterRequest{})
			if err != nil {
				return err
			}
			return status.Write(cmd.OutOrStdout(), answer, output)
		},
	}
	c.flags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.AddCommand(newStatusLanes(&c, &output), newStatusRequest(&c, &output))
	return cmd
}
