package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/stack"
	"penstock/vllm/simengine"
)

func newSim() *cobra.Command {
	cmd := &cobra.Command{Use: "sim", Short: "A simulated engine, traces replayed in virtual time, and limited lanes on a real broker", Example: "  penstock sim engine --listen 127.0.0.1:8000"}
	cmd.AddCommand(newSimEngine(), newSimLanes(), newSimReplay(), newSimCompare(), newSimFit())
	return cmd
}

func newSimEngine() *cobra.Command {
	cfg := simengine.DefaultConfig()
	var listen string
	var kvTokens int
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Serve a simulated vLLM engine",
		Long: `sim engine serves vLLM's HTTP API over a simulated engine: paged KV blocks, continuous
batching, chunked prefill, preemption, aborts and vLLM's metrics page. A step takes
step + per-prefill-token x prompt tokens + per-sequence x sequences that decode + per-kv-token x KV tokens held.`,
		Example: `  penstock sim engine --listen 127.0.0.1:8000
  penstock sim engine --model llama --kv-tokens 160000 --max-seqs 256 --step 10ms --per-prefill-token 66us`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Engine.BlockSize < 1 || kvTokens < cfg.Engine.BlockSize {
				return exit.Usagef("--kv-tokens %d with --block-size %d: want at least one block", kvTokens, cfg.Engine.BlockSize)
			}
			cfg.Engine.Blocks = kvTokens/cfg.Engine.BlockSize + 1 // the null block holds nothing
			sim, err := stack.NewSimulated(listen, cfg)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "READY  simulated engine for model %q on %s\n", cfg.Model, sim.URL())
			return errors.Join(err, sim.Run(cmd.Context()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "address to serve")
	f.StringVar(&cfg.Model, "model", cfg.Model, "model name")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of texts and output lengths")
	f.IntVar(&kvTokens, "kv-tokens", cfg.Engine.Capacity(), "tokens that the KV cache holds; a multiple of --block-size")
	f.IntVar(&cfg.Engine.BlockSize, "block-size", cfg.Engine.BlockSize, "tokens per KV block")
	f.IntVar(&cfg.Engine.MaxSeqs, "max-seqs", cfg.Engine.MaxSeqs, "sequences that run at once")
	f.IntVar(&cfg.Engine.MaxModelLen, "max-model-len", cfg.Engine.MaxModelLen, "longest prompt plus output, in tokens")
	f.IntVar(&cfg.Engine.MaxBatchedTokens, "max-batched-tokens", cfg.Engine.MaxBatchedTokens, "tokens computed in one step")
	f.IntVar(&cfg.Engine.MaxQueuedTokens, "max-num-queued-tokens", 0, "vLLM's own cap: prompt tokens without a first token above which it answers 503; 0 = none")
	f.DurationVar(&cfg.Engine.Base, "step", cfg.Engine.Base, "time of an empty step")
	f.DurationVar(&cfg.Engine.PerPrefillToken, "per-prefill-token", cfg.Engine.PerPrefillToken, "time per prompt token computed")
	f.DurationVar(&cfg.Engine.PerPrefillContext, "per-prefill-context", cfg.Engine.PerPrefillContext, "time per prompt token computed and 1,000 tokens before it")
	f.DurationVar(&cfg.Engine.PerSeq, "per-sequence", cfg.Engine.PerSeq, "time per sequence that decodes")
	f.DurationVar(&cfg.Engine.PerKVToken, "per-kv-token", cfg.Engine.PerKVToken, "time per KV token held")
	return cmd
}
