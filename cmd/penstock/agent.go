package main

import (
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"penstock/agent"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/neighbours"
	"penstock/cmd/penstock/stack"
	"penstock/scraper/nvml"
)

func newAgent() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "The node side of a fleet, beside one vLLM engine",
		Long: `agent runs beside one vLLM engine: it subscribes to the lanes its engine can serve, starts what the
engine can finish in time and gives the rest back. It starts with the engine, the broker or Redis away,
says so in /readyz, gRPC health and the log, and comes up when they do.`,
		Example: `  penstock agent --engine http://127.0.0.1:8000 --rocketmq broker:8081 --redis redis:6379
  penstock agent --engine unix:///run/vllm.sock --node gpu7 --pool a100 --rocketmq broker:8081 --redis redis:6379`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.Load(cmd.Flags(), newAgent)
			if err != nil {
				return err
			}
			back, err := flags.ReadBackends(cmd.Flags())
			if err != nil {
				return exit.Usagef("%w", err)
			}
			text := func(name string) string { v, _ := cmd.Flags().GetString(name); return v }
			if text("engine") == "sim" {
				return exit.Usagef("--engine %q: want the engine's URL, such as http://127.0.0.1:8000 or unix:///run/vllm.sock", text("engine"))
			}
			cfg := agent.DefaultConfig()
			cfg.Node, cfg.Pool, cfg.GRPC, cfg.Grace = text("node"), text("pool"), text("grpc-advertise"), opts.Grace
			if cfg.Node == "" {
				if cfg.Node, err = os.Hostname(); err != nil {
					return exit.Usagef("--node is not set and the host has no name: %w", err)
				}
			}
			cfg.SetEngine(text("engine"))
			cfg.Scheduler.Law = opts.Law
			cfg.NVML.Path = text("nvml")
			if gpus := text("gpus"); gpus != "" {
				cfg.NVML.GPUs = strings.Split(gpus, ",")
			}
			cfg.Engine.APIKey = opts.EngineKey
			others, err := neighbours.Read(cmd.Flags(), cfg.Node)
			if err != nil {
				return exit.Usagef("%w", err)
			}
			if host, port, err := net.SplitHostPort(cfg.GRPC); cfg.GRPC != "" && (err != nil || port == "" || flags.Unspecified(host)) {
				return exit.Usagef("--grpc-advertise %q: want HOST:PORT that others reach --grpc at", cfg.GRPC)
			}
			return stack.RunAgent(cmd.Context(), opts, cfg, back, others, flags.NewLogger(cmd.ErrOrStderr(), opts))
		},
	}
	f := cmd.Flags()
	f.String("engine", defaultEngine, "URL of the vLLM engine")
	f.String("engine-api-key-file", "", "file with the API key that the engine asks for")
	f.String("node", "", "unique name of this agent (default: the host's name)")
	f.String("nvml", nvml.Auto, `GPU helper: "auto" looks for penstock-nvml beside this program and in PATH, "off", or its path`)
	f.String("gpus", "", "GPUs of this engine, indices or UUIDs, such as 0,1 (default: $CUDA_VISIBLE_DEVICES, else all of the host)")
	f.String("pool", "", "hardware class of this engine; lanes that ask for another are left alone")
	flags.AddGRPC(f)
	flags.AddLaw(f)
	flags.AddTiers(f)
	flags.AddPolicy(f, true)
	f.String("grpc-advertise", "", "HOST:PORT of --grpc in the engine directory, for gateways and penstock drain (default: --grpc; where that is all interfaces, the address that gossip advertises, else the default route's; none where only gossip leaves this host)")
	f.String("admin", "127.0.0.1:4782", "address of metrics, probes and profiles; keep it on loopback")
	f.String("metrics", "127.0.0.1:4784", "address of metrics and probes only, for all interfaces")
	flags.AddCommon(f)
	flags.AddBackends(f)
	neighbours.Flags(f, "127.0.0.1:4783")
	return cmd
}
