package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/stack"
)

// defaultEngine is where vLLM listens unless told otherwise.
const defaultEngine = "http://127.0.0.1:8000"

func newStandalone() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "standalone",
		Short: "Gateway and agents in one process, in front of one or several engines",
		Long: `standalone puts an OpenAI-compatible API in front of running vLLM engines, with one agent
per engine in this process. Without --engine it looks at ` + defaultEngine + `.

Every flag is also a PENSTOCK_* variable and a key of the configuration file:
flags win over variables, variables over the file. See: penstock config example.`,
		Example: `  penstock standalone --engine http://127.0.0.1:8000
  penstock standalone --engine http://gpu1:8000 --engine http://gpu2:8000
  penstock standalone --engine sim
  penstock standalone --engine http://127.0.0.1:8000 --listen 0.0.0.0:4780 --api-keys keys.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.Load(cmd.Flags(), newStandalone)
			if err != nil {
				return err
			}
			return standalone(cmd.Context(), opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArray("engine", nil, `URL of a vLLM engine, or "sim" for the built-in simulated one; may be given several times`)
	f.String("engine-api-key-file", "", "file with the API key that the engines ask for")
	f.String("listen", "127.0.0.1:4780", "address of the OpenAI API")
	flags.AddGRPC(f)
	flags.AddLaw(f)
	flags.AddTiers(f)
	f.String("admin", "127.0.0.1:4782", "address of metrics, probes and profiles; keep it on loopback")
	flags.AddPolicy(f, false)
	flags.AddDoor(f)
	flags.AddCommon(f)
	return cmd
}

// findEngine answers for a command line without --engine.
func findEngine(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, defaultEngine+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", exit.With(exit.Unreachable, fmt.Errorf(`no engine at %s (%w).
Name yours:                  penstock standalone --engine http://HOST:PORT
or try the simulated engine: penstock standalone --engine sim`, defaultEngine, err))
	}
	_ = resp.Body.Close()
	return defaultEngine, nil
}

func standalone(ctx context.Context, opts *flags.Options, stdout, stderr io.Writer) error {
	if len(opts.Engines) == 0 {
		found, err := findEngine(ctx)
		if err != nil {
			return err
		}
		opts.Engines = []string{found}
	}
	s, err := stack.NewStandalone(opts, flags.NewLogger(stderr, opts))
	if err != nil {
		return err
	}
	s.OnReady = func(model string) { printReady(stdout, s, model) }
	return s.Run(ctx)
}

// printReady says how to send the first request.
func printReady(w io.Writer, s *stack.Standalone, model string) {
	auth := ""
	if s.Policy().Authenticates() {
		auth = " -H 'Authorization: Bearer YOUR_KEY'"
	}
	_, _ = fmt.Fprintf(w, `READY  OpenAI API on http://%s  (metrics and state: http://%s)
  curl -N http://%s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{"model":"%s","stream":true,"max_tokens":32,"messages":[{"role":"user","content":"Hello"}]}'
Ctrl-C drains and ends.
`, s.Address(), s.AdminAddress(), s.Address(), auth, model)
}
