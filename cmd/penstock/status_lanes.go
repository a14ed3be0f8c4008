package main

import (
	"errors"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
	"penstock/cmd/penstock/status"
	penstockv1 "penstock/proto/penstock/v1"
)

func newStatusLanes(c *caller, output *string) *cobra.Command {
	var top int32
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "What waits, lane by lane, and what it waits for",
		Long: `lanes lists what waits in the whole fleet: first by tier and model, then the lanes with the longest backlog. For
each: how old the oldest is, how many run of how many that may (the width), and why the rest waits:
  no_engine                     no engine that takes work serves it
  lane_concurrency, lane_pace   as many of it run, or start per second, as the policy lets
  lane_width                    an engine is free, and all that waits stands behind what runs of the same lane
  kv_high ...                   the commonest gate of the engines that serve it
  ok                            it starts right now
A lane is one tenant's: the list is for operators.`,
		Example: `  penstock status lanes
  penstock status lanes --top 5 -o json | jq '.lanes[] | select(.limited_by == "lane_width")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(show.CheckOutput(*output), c.load(cmd.Flags())); err != nil {
				return err
			}
			if top < 1 {
				return exit.Usagef("--top %d: want 1 or more", top)
			}
			answer, err := call(cmd.Context(), c, penstockv1.AgentServiceClient.Lanes, &penstockv1.LanesRequest{Top: top})
			if err != nil {
				return err
			}
			return status.WriteLanes(cmd.OutOrStdout(), answer, *output)
		},
	}
	cmd.Flags().Int32Var(&top, "top", 20, "at most so many")
	return cmd
}

func newStatusRequest(c *caller, output *string) *cobra.Command {
	return &cobra.Command{
		Use:   "request ID",
		Short: "Where one request is",
		Long: `request shows the record of a request and its run, if the agent asked is the one that runs it. ID is the id of
the log line, 32 hex digits; the x-request-id of a client is the label beside it. Exit code 1 if there is no record.`,
		Example: `  penstock status request 5d41402abc4b2a76b9719d911017c592
  penstock status request 5d41402abc4b2a76b9719d911017c592 --grpc gpu7:4781 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(show.CheckOutput(*output), c.load(cmd.Flags())); err != nil {
				return err
			}
			answer, err := call(cmd.Context(), c, penstockv1.AgentServiceClient.GetRequest, &penstockv1.GetRequestRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return status.WriteRequest(cmd.OutOrStdout(), args[0], answer, *output)
		},
	}
}
