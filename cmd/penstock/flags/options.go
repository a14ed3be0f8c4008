// Package flags has the groups of flags that several commands have, and what they say
// once checked: Add… gives a command a group, Load and Read read all it has.
package flags

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
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

// Options are the checked flags that several commands have; a command that lacks a
// flag leaves its field empty.
type Options struct {
	Engines        []string // URLs, or "sim"
	EngineKey      string
	Listen, GRPC   string
	GRPCKeys       control.Config
	Direct         direct.Config
	Admin, Metrics string
	SLOTTFT, Grace time.Duration
	RefuseLaw      string
	Law            scheduler.Law
	Tiers          config.Tiers
	DefaultTier    string
	Keys           *apikey.Keys
	PolicyFile     string // set alone, it is where the policy lies
	PolicyIn       string // ByFlags, InFile, InRedis or InNacos
	PolicyNamed    bool   // by --policy, not by default
	Nacos          nacos.Config
	Redis          *policyredis.Config // of standalone, in tests
	authenticates  bool                // the policy has keys
	NeedKeys       bool                // the policy, which is not read yet, must have keys
	Settings       *Settings
	logLevel       slog.Level
	logJSON        bool
}

// AddDoor adds the flags of whoever serves the OpenAI API.
func AddDoor(f *pflag.FlagSet) {
	f.Duration("slo-ttft", gateway.DefaultConfig().SLOTTFT, "time to first token that requests are admitted for, such as 2s")
	f.String("default-tier", "", "tier of requests whose x-penstock-tier header names none (default: the last of --tiers)")
	f.String("refuse-law", gateway.LawRate, "by what a request is refused at once: rate (its predicted start) or watermark (how full the engines are)")
	f.String("api-keys", "", `YAML file of "tenant: key" or "tenant: sha256:…" lines (see: penstock keys hash); without it everybody is one tenant`)
	f.Bool("insecure-no-auth", false, "serve addresses other than loopback without --api-keys")
}

// AddCommon adds the flags of every process that serves.
func AddCommon(f *pflag.FlagSet) {
	f.Duration("grace", gateway.DefaultConfig().Grace, "how long a shutdown waits for requests in flight")
	f.String("log-level", "info", "debug, info, warn or error")
	f.String("log-format", "text", "text or json")
	f.String("config", "", "configuration file; default: the first of $PENSTOCK_CONFIG, ./penstock.yaml, the user's configuration directory, /etc/penstock/config.yaml")
}

// AddGRPC adds the flags of whoever has agents.
func AddGRPC(f *pflag.FlagSet) {
	f.String("grpc", "127.0.0.1:4781", "address of gRPC: health, state, drain")
	f.String("grpc-cert", "", "PEM file with the certificate of --grpc; TLS then, beside plain text; read again when it changes")
	f.String("grpc-key", "", "PEM file with its key")
	f.String("grpc-client-ca", "", "PEM file with the authority of clients that may drain and abort from other hosts; without it only callers on this host may")
}

// AddLaw adds the flag of whoever decides what starts on an engine.
func AddLaw(f *pflag.FlagSet) {
	f.String("law", scheduler.DefaultConfig().Law.String(), "how full an engine may be: forecast (what runs will fit until it ends, learned from its own answers) or watermark (fixed marks of KV usage)")
}

// AddTiers adds the flag of whoever knows tiers; all processes of a fleet are told the same.
func AddTiers(f *pflag.FlagSet) {
	f.Var(&config.Tiers{}, "tiers", "classes of requests, first goes first: a list of {name, floor, ceiling, age, slo-ttft, slo-tpot}; floor and ceiling are shares of an engine's KV cache from 0 to 1, a head older than age goes first; none = one tier, default")
}

// load fills f from environment and file.
func load(f *pflag.FlagSet) error {
	file, _ := f.GetString("config")
	_, err := config.Load(f, config.Find(file, os.LookupEnv), os.LookupEnv)
	return err
}

// Load fills f from environment and file and reads it, for a command that is about to
// run; all errors are usage errors. fresh makes the command again, for a reload to see
// what has changed since; nil where there is none.
func Load(f *pflag.FlagSet, fresh func() *cobra.Command) (*Options, error) {
	if err := load(f); err != nil {
		return nil, exit.Usagef("%w", err)
	}
	opts, err := Read(f)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	opts.Settings = newSettings(f, fresh)
	return opts, nil
}

// Read reads the flags of f as they are. Every error names the flag, its value and the
// fix.
func Read(f *pflag.FlagSet) (*Options, error) {
	text := func(name string) string { v, _ := f.GetString(name); return v }
	opts := &Options{Listen: text("listen"), GRPC: text("grpc"), Admin: text("admin"), Metrics: text("metrics")}
	opts.GRPCKeys = control.Config{Cert: text("grpc-cert"), Key: text("grpc-key"), ClientCA: text("grpc-client-ca")}
	opts.Direct = direct.DefaultConfig()
	opts.Direct.Files = direct.Files{CA: text("grpc-ca"), Cert: text("grpc-client-cert"), Key: text("grpc-client-key")}
	if err := opts.Direct.Validate(); err != nil {
		return nil, fmt.Errorf("--grpc-ca, --grpc-client-cert, --grpc-client-key: %w", err)
	}
	if opts.Direct.Files.CA != "" && opts.Direct.Files.Cert == "" {
		return nil, fmt.Errorf("--grpc-ca %q: agents take an abort from another host with a certificate only: give --grpc-client-cert and --grpc-client-key too", opts.Direct.Files.CA)
	}
	opts.Grace, _ = f.GetDuration("grace")
	if list, err := f.GetStringArray("engine"); err == nil {
		opts.Engines = list
	} else if one := text("engine"); one != "" {
		opts.Engines = []string{one}
	}
	for _, engine := range opts.Engines {
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
	if opts.Grace < 0 {
		return nil, fmt.Errorf("--grace %v: want 0 or more", opts.Grace)
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
		opts.EngineKey = strings.TrimSpace(string(key))
	}
	if f.Lookup("law") != nil {
		var err error
		if opts.Law, err = scheduler.ParseLaw(text("law")); err != nil {
			return nil, fmt.Errorf("--law %w", err)
		}
	}
	if tiers := f.Lookup("tiers"); tiers != nil {
		opts.Tiers = *tiers.Value.(*config.Tiers)
	}
	if f.Lookup("slo-ttft") != nil {
		return opts, opts.readDoor(f)
	}
	return opts, opts.readPolicy(f)
}

// readDoor reads the flags of AddDoor.
func (o *Options) readDoor(f *pflag.FlagSet) error {
	if o.SLOTTFT, _ = f.GetDuration("slo-ttft"); o.SLOTTFT <= 0 || o.SLOTTFT > 600*time.Second {
		return fmt.Errorf("--slo-ttft %v: want more than 0 and at most 10m", o.SLOTTFT)
	}
	if o.RefuseLaw, _ = f.GetString("refuse-law"); o.RefuseLaw != gateway.LawRate && o.RefuseLaw != gateway.LawWatermark {
		return fmt.Errorf("--refuse-law %q: want %s or %s", o.RefuseLaw, gateway.LawRate, gateway.LawWatermark)
	}
	o.DefaultTier, _ = f.GetString("default-tier")
	door := gateway.DefaultConfig()
	o.Door(&door)
	if err := door.Validate(); err != nil {
		return fmt.Errorf("--slo-ttft, --refuse-law: %w", err)
	}
	if path, _ := f.GetString("api-keys"); path != "" {
		lines, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("--api-keys: %w", err)
		}
		if o.Keys, err = apikey.Parse(lines); err != nil {
			return fmt.Errorf("--api-keys %s: %w", path, err)
		}
	}
	if err := o.readPolicy(f); err != nil {
		return err
	}
	if o.DefaultTier != "" && o.Tiers.Place(o.DefaultTier) < 0 {
		return fmt.Errorf("--default-tier %q: set it to one of %s", o.DefaultTier, strings.Join(o.Tiers.Names(), ", "))
	}
	if insecure, _ := f.GetBool("insecure-no-auth"); o.Keys == nil && !o.authenticates && !insecure && !Loopback(o.Listen) {
		if !o.PolicyNamed || o.PolicyIn == InFile {
			return fmt.Errorf("--listen %s is reachable from other machines and there are no API keys: set --api-keys FILE or keys in a policy that --policy names, listen on 127.0.0.1, or say --insecure-no-auth", o.Listen)
		}
		o.NeedKeys = true
	}
	return nil
}

// Door sets what the flags say about the gateway.
func (o *Options) Door(cfg *gateway.Config) {
	cfg.SLOTTFT, cfg.RefuseLaw, cfg.Grace = o.SLOTTFT, o.RefuseLaw, o.Grace
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

// Loopback reports whether only this host reaches address, a HOST:PORT.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Unspecified reports whether host stands for all interfaces.
func Unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// NewLogger writes to w as --log-level and --log-format say.
func NewLogger(w io.Writer, opts *Options) *slog.Logger {
	o := &slog.HandlerOptions{Level: opts.logLevel}
	if opts.logJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
