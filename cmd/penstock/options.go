package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/agent/control"
	"penstock/cmd/penstock/exit"
	"penstock/config"
	"penstock/gateway"
	"penstock/gateway/direct"
	"penstock/policy/apikey"
	"penstock/policy/source/nacos"
	policyredis "penstock/policy/source/redis"
	"penstock/scheduler"
)

// options are the checked flags that several commands have; a command that lacks a
// flag leaves its field empty.
type options struct {
	engines        []string // URLs, or "sim"
	engineKey      string
	listen, grpc   string
	grpcKeys       control.Config
	direct         direct.Config
	admin, metrics string
	sloTTFT, grace time.Duration
	refuseLaw      string
	law            scheduler.Law
	tiers          config.Tiers
	defaultTier    string
	keys           *apikey.Keys
	policyFile     string // set alone, it is where the policy lies
	policyIn       string // byFlags, inFile, inRedis or inNacos
	policyNamed    bool   // by --policy, not by default
	nacos          nacos.Config
	redis          *policyredis.Config // of standalone, in tests
	authenticates  bool                // the policy has keys
	needKeys       bool                // the policy, which is not read yet, must have keys
	settings       *settings
	logLevel       slog.Level
	logJSON        bool
}

// doorFlags are those of whoever serves the OpenAI API.
func doorFlags(f *pflag.FlagSet) {
	f.Duration("slo-ttft", gateway.DefaultConfig().SLOTTFT, "time to first token that requests are admitted for, such as 2s")
	f.String("default-tier", "", "tier of requests whose x-penstock-tier header names none (default: the last of --tiers)")
	f.String("refuse-law", gateway.LawRate, "by what a request is refused at once: rate (its predicted start) or watermark (how full the engines are)")
	f.String("api-keys", "", `YAML file of "tenant: key" or "tenant: sha256:…" lines (see: penstock keys hash); without it everybody is one tenant`)
	f.Bool("insecure-no-auth", false, "serve addresses other than loopback without --api-keys")
}

func commonFlags(f *pflag.FlagSet) {
	f.Duration("grace", gateway.DefaultConfig().Grace, "how long a shutdown waits for requests in flight")
	f.String("log-level", "info", "debug, info, warn or error")
	f.String("log-format", "text", "text or json")
	f.String("config", "", "configuration file; default: the first of $PENSTOCK_CONFIG, ./penstock.yaml, the user's configuration directory, /etc/penstock/config.yaml")
}

// grpcFlags are those of whoever has agents.
func grpcFlags(f *pflag.FlagSet) {
	f.String("grpc", "127.0.0.1:4781", "address of gRPC: health, state, drain")
	f.String("grpc-cert", "", "PEM file with the certificate of --grpc; TLS then, beside plain text; read again when it changes")
	f.String("grpc-key", "", "PEM file with its key")
	f.String("grpc-client-ca", "", "PEM file with the authority of clients that may drain and abort from other hosts; without it only callers on this host may")
}

// lawFlag is that of whoever decides what starts on an engine.
func lawFlag(f *pflag.FlagSet) {
	f.String("law", scheduler.DefaultConfig().Law.String(), "how full an engine may be: forecast (what runs will fit until it ends, learned from its own answers) or watermark (fixed marks of KV usage)")
}

// tiersFlag is that of whoever knows tiers; all processes of a fleet are told the same.
func tiersFlag(f *pflag.FlagSet) {
	f.Var(&config.Tiers{}, "tiers", "classes of requests, first goes first: a list of {name, floor, ceiling, age, slo-ttft, slo-tpot}; floor and ceiling are shares of an engine's KV cache from 0 to 1, a head older than age goes first; none = one tier, default")
}

// loadFlags fills f from environment and file.
func loadFlags(f *pflag.FlagSet) error {
	file, _ := f.GetString("config")
	_, err := config.Load(f, config.Find(file, os.LookupEnv), os.LookupEnv)
	return err
}

// prepare loads and reads the flags of a command that is about to run. fresh makes the
// command again, for a reload to see what has changed since.
func prepare(f *pflag.FlagSet, fresh func() *cobra.Command) (*options, error) {
	if err := loadFlags(f); err != nil {
		return nil, exit.Usagef("%w", err)
	}
	opts, err := readOptions(f)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	opts.settings = newSettings(f, fresh)
	return opts, nil
}

// readOptions reads the flags after loadFlags. Every error names the flag, its value
// and the fix.
func readOptions(f *pflag.FlagSet) (*options, error) {
	text := func(name string) string { v, _ := f.GetString(name); return v }
	opts := &options{listen: text("listen"), grpc: text("grpc"), admin: text("admin"), metrics: text("metrics")}
	opts.grpcKeys = control.Config{Cert: text("grpc-cert"), Key: text("grpc-key"), ClientCA: text("grpc-client-ca")}
	opts.direct = direct.DefaultConfig()
	opts.direct.Files = direct.Files{CA: text("grpc-ca"), Cert: text("grpc-client-cert"), Key: text("grpc-client-key")}
	if err := opts.direct.Validate(); err != nil {
		return nil, fmt.Errorf("--grpc-ca, --grpc-client-cert, --grpc-client-key: %w", err)
	}
	if opts.direct.Files.CA != "" && opts.direct.Files.Cert == "" {
		return nil, fmt.Errorf("--grpc-ca %q: agents take an abort from another host with a certificate only: give --grpc-client-cert and --grpc-client-key too", opts.direct.Files.CA)
	}
	opts.grace, _ = f.GetDuration("grace")
	if list, err := f.GetStringArray("engine"); err == nil {
		opts.engines = list
	} else if one := text("engine"); one != "" {
		opts.engines = []string{one}
	}
	for _, engine := range opts.engines {
		if err := checkEngine(engine); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"listen", "grpc", "admin", "metrics"} {
		if f.Lookup(name) == nil {
			continue
		}
		if _, _, err := net.SplitHostPort(text(name)); err != nil {
			return nil, fmt.Errorf("--%s %q: want HOST:PORT or :PORT", name, text(name))
		}
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
	if f.Lookup("law") != nil {
		var err error
		if opts.law, err = scheduler.ParseLaw(text("law")); err != nil {
			return nil, fmt.Errorf("--law %w", err)
		}
	}
	if tiers := f.Lookup("tiers"); tiers != nil {
		opts.tiers = *tiers.Value.(*config.Tiers)
	}
	if f.Lookup("slo-ttft") != nil {
		return opts, opts.readDoor(f)
	}
	return opts, opts.readPolicy(f)
}

// readDoor reads doorFlags.
func (o *options) readDoor(f *pflag.FlagSet) error {
	if o.sloTTFT, _ = f.GetDuration("slo-ttft"); o.sloTTFT <= 0 || o.sloTTFT > 600*time.Second {
		return fmt.Errorf("--slo-ttft %v: want more than 0 and at most 10m", o.sloTTFT)
	}
	if o.refuseLaw, _ = f.GetString("refuse-law"); o.refuseLaw != gateway.LawRate && o.refuseLaw != gateway.LawWatermark {
		return fmt.Errorf("--refuse-law %q: want %s or %s", o.refuseLaw, gateway.LawRate, gateway.LawWatermark)
	}
	o.defaultTier, _ = f.GetString("default-tier")
	door := gateway.DefaultConfig()
	o.door(&door)
	if err := door.Validate(); err != nil {
		return fmt.Errorf("--slo-ttft, --refuse-law: %w", err)
	}
	if path, _ := f.GetString("api-keys"); path != "" {
		lines, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("--api-keys: %w", err)
		}
		if o.keys, err = apikey.Parse(lines); err != nil {
			return fmt.Errorf("--api-keys %s: %w", path, err)
		}
	}
	if err := o.readPolicy(f); err != nil {
		return err
	}
	if o.defaultTier != "" && o.tiers.Place(o.defaultTier) < 0 {
		return fmt.Errorf("--default-tier %q: set it to one of %s", o.defaultTier, strings.Join(o.tiers.Names(), ", "))
	}
	if insecure, _ := f.GetBool("insecure-no-auth"); o.keys == nil && !o.authenticates && !insecure && !loopback(o.listen) {
		if !o.policyNamed || o.policyIn == inFile {
			return fmt.Errorf("--listen %s is reachable from other machines and there are no API keys: set --api-keys FILE or keys in a policy that --policy names, listen on 127.0.0.1, or say --insecure-no-auth", o.listen)
		}
		o.needKeys = true
	}
	return nil
}

// door sets what the flags say about the gateway.
func (o *options) door(cfg *gateway.Config) {
	cfg.SLOTTFT, cfg.RefuseLaw, cfg.Grace = o.sloTTFT, o.refuseLaw, o.grace
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

// listen opens an address; one that is in use names its flag.
func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, exit.Usagef("%s %s is in use by another process: choose another address with %s", flag, address, flag)
	case err != nil:
		return nil, exit.Usagef("%s %s: %w", flag, address, err)
	}
	return l, nil
}

type listenerFlag struct{ flag, address string }

// listenAll opens the addresses, all or none.
func listenAll(flags ...listenerFlag) (ls []net.Listener, err error) {
	for _, f := range flags {
		l, err := listen(f.flag, f.address)
		if err != nil {
			closeAll(ls)
			return nil, err
		}
		ls = append(ls, l)
	}
	return ls, nil
}

func closeAll(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close()
	}
}

func newLogger(w io.Writer, opts *options) *slog.Logger {
	o := &slog.HandlerOptions{Level: opts.logLevel}
	if opts.logJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
