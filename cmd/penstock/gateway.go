package main

import (
	"os"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/neighbours"
	"penstock/cmd/penstock/stack"
)

func newGateway() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "The client side of a fleet: OpenAI API in, lanes on RocketMQ, records in Redis",
		Long: `gateway serves the OpenAI API for a fleet of agents that share a RocketMQ broker and a Redis.
It starts with either of them away, says so in /readyz and the log, and comes up when they do.`,
		Example: `  penstock gateway --rocketmq broker:8081 --redis redis:6379
  penstock gateway --rocketmq broker:8081 --redis redis:6379 --listen 0.0.0.0:4780 --api-keys keys.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.Load(cmd.Flags(), newGateway)
			if err != nil {
				return err
			}
			back, err := flags.ReadBackends(cmd.Flags())
			if err != nil {
				return exit.Usagef("%w", err)
			}
			host, _ := os.Hostname()
			address, _ := cmd.Flags().GetString("gossip")
			others, err := neighbours.Read(cmd.Flags(), "gateway@"+host+"/"+address)
			if err != nil {
				return exit.Usagef("%w", err)
			}
			return stack.RunGateway(cmd.Context(), opts, back, others, flags.NewLogger(cmd.ErrOrStderr(), opts))
		},
	}
	f := cmd.Flags()
	f.String("listen", "127.0.0.1:4780", "address of the OpenAI API")
	f.String("admin", "127.0.0.1:4785", "address of metrics, probes and profiles; keep it on loopback")
	f.String("metrics", "127.0.0.1:4787", "address of metrics and probes only, for all interfaces")
	flags.AddDoor(f)
	flags.AddTiers(f)
	flags.AddPolicy(f, true)
	flags.AddCommon(f)
	flags.AddBackends(f)
	neighbours.Flags(f, "127.0.0.1:4786")
	f.String("grpc-ca", "", `PEM file with the authority of agents' certificates, "system" for the system's: a request whose client left is aborted at its agent directly, too; without it at agents on this host alone`)
	f.String("grpc-client-cert", "", "PEM file with the certificate that this gateway shows agents")
	f.String("grpc-client-key", "", "PEM file with its key")
	return cmd
}
