package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/config"
	"penstock/gateway"
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
			file, _ := cmd.Flags().GetString("config")
			if _, err := config.Load(cmd.Flags(), config.Find(file, os.LookupEnv), os.LookupEnv); err != nil {
				return usage("%w", err)
			}
			opts, err := standaloneOptions(cmd.Flags())
			if err != nil {
				return usage("%w", err)
			}
			return standalone(cmd.Context(), opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArray("engine", nil, `URL of a vLLM engine, or "sim" for the built-in simulated one; may be given several times`)
	f.String("engine-api-key-file", "", "file with the API key that the engines ask for")
	f.String("listen", "127.0.0.1:4780", "address of the OpenAI API")
	f.String("grpc", "127.0.0.1:4781", "address of gRPC health")
	f.String("admin", "127.0.0.1:4782", "address of metrics, probes and profiles; keep it on loopback")
	f.Duration("slo-ttft", gateway.DefaultConfig().SLOTTFT, "time to first token that requests are admitted for, such as 2s")
	f.String("api-keys", "", `YAML file of "tenant: key" or "tenant: sha256:…" lines (see: penstock keys hash); without it everybody is one tenant`)
	f.Bool("insecure-no-auth", false, "serve addresses other than loopback without --api-keys")
	f.Duration("grace", gateway.DefaultConfig().Grace, "how long a shutdown waits for requests in flight")
	f.String("log-level", "info", "debug, info, warn or error")
	f.String("log-format", "text", "text or json")
	f.String("config", "", "configuration file; default: the first of $PENSTOCK_CONFIG, ./penstock.yaml, the user's configuration directory, /etc/penstock/config.yaml")
	return cmd
}

// options of standalone, checked.
type options struct {
	engines             []string // URLs, or "sim"
	engineKey           string
	listen, grpc, admin string
	sloTTFT, grace      time.Duration
	keys                *gateway.Keys
	logLevel            slog.Level
	logJSON             bool
}

// standaloneOptions reads the flags after config.Load. Every error names the flag,
// its value and the fix.
func standaloneOptions(f *pflag.FlagSet) (*options, error) {
	text := func(name string) string { v, _ := f.GetString(name); return v }
	opts := &options{listen: text("listen"), grpc: text("grpc"), admin: text("admin")}
	opts.engines, _ = f.GetStringArray("engine")
	opts.sloTTFT, _ = f.GetDuration("slo-ttft")
	opts.grace, _ = f.GetDuration("grace")
	for _, engine := range opts.engines {
		if err := checkEngine(engine); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"listen", "grpc", "admin"} {
		if _, _, err := net.SplitHostPort(text(name)); err != nil {
			return nil, fmt.Errorf("--%s %q: want HOST:PORT or :PORT", name, text(name))
		}
	}
	if opts.sloTTFT <= 0 || opts.sloTTFT > 600*time.Second {
		return nil, fmt.Errorf("--slo-ttft %v: want more than 0 and at most 10m", opts.sloTTFT)
	}
	if opts.grace < 0 {
		return nil, fmt.Errorf("--grace %v: want 0 or more", opts.grace)
	}
	if err := opts.logLevel.UnmarshalText([]byte(text("log-level"))); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", text("log-level"))
	}
	switch text("log-format") {
	case "text", "json":
		opts.logJSON = text("log-format") == "json"
	default:
		return nil, fmt.Errorf("--log-format %q: want text or json", text("log-format"))
	}
	if path := text("engine-api-key-file"); path != "" {
		key, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--engine-api-key-file: %w", err)
		}
		opts.engineKey = strings.TrimSpace(string(key))
	}
	if path := text("api-keys"); path != "" {
		lines, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--api-keys: %w", err)
		}
		if opts.keys, err = gateway.ParseKeys(lines); err != nil {
			return nil, fmt.Errorf("--api-keys %s: %w", path, err)
		}
	}
	if insecure, _ := f.GetBool("insecure-no-auth"); opts.keys == nil && !insecure && !loopback(opts.listen) {
		return nil, fmt.Errorf("--listen %s is reachable from other machines and there are no API keys: set --api-keys FILE, listen on 127.0.0.1, or say --insecure-no-auth", opts.listen)
	}
	return opts, nil
}

func checkEngine(engine string) error {
	if engine == "sim" {
		return nil
	}
	u, err := url.Parse(engine)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" || u.Scheme != "unix" && u.Host == "" {
		return fmt.Errorf("--engine %q: want a URL such as http://127.0.0.1:8000, unix:///run/vllm.sock, or sim", engine)
	}
	return nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
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
		return "", &exitError{exitUnreachable, fmt.Errorf(`no engine at %s (%w).
Name yours:                  penstock standalone --engine http://HOST:PORT
or try the simulated engine: penstock standalone --engine sim`, defaultEngine, err)}
	}
	_ = resp.Body.Close()
	return defaultEngine, nil
}

func standalone(ctx context.Context, opts *options, stdout, stderr io.Writer) error {
	if len(opts.engines) == 0 {
		found, err := findEngine(ctx)
		if err != nil {
			return err
		}
		opts.engines = []string{found}
	}
	s, err := newStack(opts, newLogger(stderr, opts))
	if err != nil {
		return err
	}
	s.onReady = func(model string) { printReady(stdout, s, model) }
	return s.Run(ctx)
}

// printReady says how to send the first request.
func printReady(w io.Writer, s *stack, model string) {
	auth := ""
	if s.opts.keys != nil {
		auth = " -H 'Authorization: Bearer YOUR_KEY'"
	}
	_, _ = fmt.Fprintf(w, `READY  OpenAI API on http://%s  (metrics and state: http://%s)
  curl -N http://%s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{"model":"%s","stream":true,"max_tokens":32,"messages":[{"role":"user","content":"Hello"}]}'
Ctrl-C drains and ends.
`, s.address(), s.adminListener.Addr(), s.address(), auth, model)
}

func newLogger(w io.Writer, opts *options) *slog.Logger {
	o := &slog.HandlerOptions{Level: opts.logLevel}
	if opts.logJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
