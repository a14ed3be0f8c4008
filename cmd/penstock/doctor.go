package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/show"
	"penstock/doctor"
	"penstock/queue/rocketmq/proxy"
	registryredis "penstock/registry/redis"
	"penstock/scraper"
	"penstock/vllm"
)

// doctorWithin bounds the whole visit.
const doctorWithin = 10 * time.Second

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check broker, Redis, engine and host, with the fix for what is wrong",
		Long: `doctor checks what a gateway or an agent needs: RocketMQ's proxy, topic and group, Redis, this host,
and with --engine an engine. It takes the flags, the PENSTOCK_* variables and the configuration file of both
commands; with --engine it looks at an agent's ports, without at a gateway's. It publishes nothing and changes
nothing. Exit code 1 when a check failed; warnings are allowed.`,
		Example: `  penstock doctor --rocketmq broker:8081 --redis redis:6379
  penstock doctor --rocketmq broker:8081 --redis redis:6379 --engine http://127.0.0.1:8000 -o json
  penstock doctor --print-setup --topic penstock --group penstock-agents`,
	}
	f := cmd.Flags()
	// The settings are those of the two commands, so that their files can be checked.
	settings := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	settings.String("engine", "", "URL of the vLLM engine to check; without it none is")
	settings.AddFlagSet(newGateway().Flags())
	settings.AddFlagSet(newAgent().Flags())
	f.AddFlagSet(settings)
	var output string
	var setup bool
	f.StringVarP(&output, "output", "o", "text", "text or json")
	f.BoolVar(&setup, "print-setup", false, "print what to run at RocketMQ and write into redis.conf, and check nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output != "text" && output != "json" {
			return exit.Usagef("-o %q: want text or json", output)
		}
		opts, err := flags.Load(settings, nil)
		if err != nil {
			return err
		}
		back, err := flags.ReadBackends(settings)
		if err != nil {
			return exit.Usagef("%w", err)
		}
		cfg := doctorConfig(settings, opts, back)
		if setup {
			return writeSetup(cmd.OutOrStdout(), doctor.NewSetup(cfg), output)
		}
		probes, closeProbes, err := newProbes(opts, back)
		if err != nil {
			return exit.Usagef("%w", err)
		}
		defer closeProbes()
		ctx, cancel := context.WithTimeout(cmd.Context(), doctorWithin)
		defer cancel()
		checks := doctor.Run(ctx, cfg, probes)
		if err := writeChecks(cmd.OutOrStdout(), checks, output); err != nil {
			return err
		}
		if n := doctor.Count(checks, doctor.Fail); n > 0 {
			return fmt.Errorf("doctor: %d of %d checks failed", n, len(checks))
		}
		return nil
	}
	return cmd
}

// doctorConfig names things as the user does, and the ports of the role that the
// flags speak of.
func doctorConfig(f *pflag.FlagSet, opts *flags.Options, back *flags.Backends) doctor.Config {
	redis, _ := f.GetString("redis")
	cfg := doctor.Config{
		RocketMQ: back.RocketMQ.Endpoint, Topic: back.RocketMQ.Topic, Group: back.RocketMQ.Group, Redis: flags.Redacted(redis),
		Ports: []doctor.Port{{Flag: "--listen", Address: opts.Listen}},
	}
	role := newGateway().Flags()
	if len(opts.Engines) > 0 {
		cfg.Engine, role = opts.Engines[0], newAgent().Flags()
		cfg.Ports[0] = doctor.Port{Flag: "--grpc", Address: opts.GRPC}
	}
	for _, name := range []string{"admin", "metrics"} {
		flag := f.Lookup(name)
		address := flag.Value.String()
		if !flag.Changed && address == flag.DefValue {
			address = role.Lookup(name).DefValue
		}
		cfg.Ports = append(cfg.Ports, doctor.Port{Flag: "--" + name, Address: address})
	}
	return cfg
}

func writeSetup(w io.Writer, s doctor.Setup, output string) error {
	if output == "json" {
		return show.JSON(w, struct {
			APIVersion string `json:"apiVersion"`
			doctor.Setup
		}{"penstock/v1", s})
	}
	_, err := io.WriteString(w, s.Text())
	return err
}

func writeChecks(w io.Writer, checks []doctor.Check, output string) error {
	if output == "json" {
		return show.JSON(w, map[string]any{"apiVersion": "penstock/v1", "ok": doctor.Count(checks, doctor.Fail) == 0, "checks": checks})
	}
	return doctor.Write(w, checks, coloured(w))
}

// coloured reports whether w is a terminal whose user does not refuse colours.
func coloured(w io.Writer) bool {
	file, isFile := w.(*os.File)
	if !isFile || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// newProbes looks at the world by the same code that serves it.
func newProbes(opts *flags.Options, back *flags.Backends) (doctor.Probes, func(), error) {
	p := doctor.Probes{
		Dial: func(ctx context.Context, address string) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			return conn.Close()
		},
		RocketMQ: func(ctx context.Context) (proxy.Report, error) { return proxy.Inspect(ctx, back.RocketMQ.Config) },
		Redis: func(ctx context.Context) (registryredis.Report, error) {
			return registryredis.Inspect(ctx, back.Registry)
		},
		OpenFiles: openFiles, Drift: drift, Listen: probeListener,
	}
	if len(opts.Engines) == 0 {
		return p, func() {}, nil
	}
	engine, page := vllm.DefaultConfig(), scraper.DefaultConfig()
	engine.URL, engine.APIKey, page.URL = opts.Engines[0], opts.EngineKey, opts.Engines[0]
	client, err := vllm.New(engine)
	if err != nil {
		return p, nil, fmt.Errorf("--engine: %w", err)
	}
	p.Models, p.Version = client.Models, client.Version
	p.Page = func(ctx context.Context) (scraper.Report, error) { return scraper.Inspect(ctx, page) }
	return p, client.Close, nil
}

// openFiles is the soft limit, which the Go runtime has raised to the hard one as it
// does for every penstock.
func openFiles() (uint64, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return limit.Cur, err
}

// drift compares the two clocks over 100 ms.
func drift(ctx context.Context) time.Duration {
	from := time.Now()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
	to := time.Now()
	return to.Round(0).Sub(from.Round(0)) - to.Sub(from)
}

// probeListener opens an address and closes it; one in use is asked who it is.
func probeListener(ctx context.Context, address string) (doctor.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return doctor.Free, l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return doctor.Free, err
	}
	if servesHTTP(ctx, address) || servesGRPC(ctx, address) {
		return doctor.Ours, nil
	}
	return doctor.Stranger, nil
}

// servesHTTP knows our probes by their role's name and our OpenAI API by its header.
func servesHTTP(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/livez", nil)
	if err != nil {
		return false
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var said struct{ Name string }
	_ = json.NewDecoder(io.LimitReader(resp.Body, 4<<10)).Decode(&said)
	return resp.Header.Get("X-Penstock-Reason") != "" || said.Name == "gateway" || said.Name == "agent" || said.Name == "penstock"
}

// servesGRPC knows an agent by its health service of the name "liveness".
func servesGRPC(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "liveness"})
	return err == nil
}
