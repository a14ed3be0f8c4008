package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"

	policyredis "penstock/policy/source/redis"
	"penstock/queue/rocketmq"
	registryredis "penstock/registry/redis"
	"penstock/response"
	responseredis "penstock/response/redis"
)

// backends are the broker and the store of a fleet, as flags name them.
type backends struct {
	rocketmq rocketmq.Config
	registry registryredis.Config
	response responseredis.Config
	policy   policyredis.Config
}

func backendFlags(f *pflag.FlagSet) {
	f.String("rocketmq", "127.0.0.1:8081", "gRPC address of a RocketMQ proxy in cluster mode")
	f.String("topic", "penstock", "RocketMQ parent topic, of type LITE")
	f.String("group", "penstock-agents", "RocketMQ consumer group of the agents")
	f.String("rocketmq-credentials-file", "", "file with the broker's access key and secret key, a line each")
	f.String("rocketmq-ca-file", "", `certificate authority of the proxy, "system" for the system's; without it the connection is plain`)
	redisFlags(f)
}

func redisFlags(f *pflag.FlagSet) {
	f.String("redis", "127.0.0.1:6379", "HOST:PORT of the Redis primary, or redis(s)://user:password@HOST:PORT/DB")
	f.String("redis-password-file", "", "file with the Redis password")
	f.String("redis-ca-file", "", "certificate authority of Redis; the connection is encrypted then (rediss:// goes by the system's)")
}

// backendOptions reads the flags after config.Load.
func backendOptions(f *pflag.FlagSet) (*backends, error) {
	text := func(name string) string { v, _ := f.GetString(name); return v }
	b := &backends{rocketmq: rocketmq.DefaultConfig(), registry: registryredis.DefaultConfig(), response: responseredis.DefaultConfig()}
	b.rocketmq.Endpoint, b.rocketmq.Topic, b.rocketmq.Group = text("rocketmq"), text("topic"), text("group")
	b.rocketmq.CAFile = text("rocketmq-ca-file")
	if path := text("rocketmq-credentials-file"); path != "" {
		lines, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--rocketmq-credentials-file: %w", err)
		}
		keys := strings.Fields(string(lines))
		if len(keys) != 2 {
			return nil, fmt.Errorf("--rocketmq-credentials-file %s: %d words, want the access key and the secret key, a line each", path, len(keys))
		}
		b.rocketmq.AccessKey, b.rocketmq.SecretKey = keys[0], keys[1]
	}
	if err := b.redis(text("redis"), text("redis-password-file"), text("redis-ca-file")); err != nil {
		return nil, err
	}
	b.registry.Live = response.IncarnationKey
	b.registry.Mailbox = b.response.MaxLen
	b.registry.Terminal = response.Terminal
	if err := b.rocketmq.Validate(); err != nil {
		return nil, err
	}
	return b, nil
}

// redis reads HOST:PORT or a redis:// address for all users of Redis.
func (b *backends) redis(address, passwordFile, caFile string) error {
	u := &url.URL{Scheme: "redis", Host: address}
	if strings.Contains(address, "://") {
		var err error
		if u, err = url.Parse(address); err != nil || u.Scheme != "redis" && u.Scheme != "rediss" {
			return fmt.Errorf("--redis %q: want HOST:PORT or redis(s)://user:password@HOST:PORT/DB", redacted(address))
		}
	}
	if host, port, err := net.SplitHostPort(u.Host); err != nil || host == "" || port == "" {
		return fmt.Errorf("--redis %q: want HOST:PORT or redis(s)://user:password@HOST:PORT/DB", redacted(address))
	}
	b.registry.Addr, b.registry.PasswordFile, b.registry.CAFile = address, passwordFile, caFile
	r := &b.response
	r.Addr, r.Username = u.Host, u.User.Username()
	r.Password, _ = u.User.Password()
	if db := strings.Trim(u.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return fmt.Errorf("--redis: database %q: want a number", db)
		}
		r.DB = n
	}
	if u.Scheme == "rediss" || caFile != "" {
		r.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
	}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return fmt.Errorf("--redis-ca-file: %w", err)
		}
		if r.TLS.RootCAs = x509.NewCertPool(); !r.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("--redis-ca-file %s: no certificate in it, want PEM", caFile)
		}
	}
	if passwordFile != "" {
		password, err := os.ReadFile(passwordFile)
		if err != nil {
			return fmt.Errorf("--redis-password-file: %w", err)
		}
		r.Password = strings.TrimSpace(string(password))
	}
	b.policy = policyredis.Config{Addr: r.Addr, Username: r.Username, Password: r.Password, DB: r.DB, TLS: r.TLS, Key: policyredis.DefaultKey}
	return nil
}

// redacted is an address without its password.
func redacted(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return address
}

// newMetrics is a registry with the process's own metrics.
func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}

// readiness is what the parts of a process say of themselves, by name.
type readiness map[string]func() (bool, string)

// all reports whether every part is ready, and which are not and why.
func (r readiness) all() (bool, string) {
	var why []string
	for name, ready := range r {
		if ok, reason := ready(); !ok {
			why = append(why, name+": "+reason)
		}
	}
	slices.Sort(why)
	return len(why) == 0, strings.Join(why, "; ")
}

// each is "ready", or why not, by part.
func (r readiness) each() map[string]string {
	said := map[string]string{}
	for name, ready := range r {
		if ok, why := ready(); ok {
			said[name] = "ready"
		} else {
			said[name] = why
		}
	}
	return said
}

// logReady logs when what ready says changes; called every few seconds.
func logReady(log *slog.Logger, was *string, ready func() (bool, string)) {
	ok, why := ready()
	now := why
	if ok {
		now = "ready"
	}
	if now == *was {
		return
	}
	*was = now
	if ok {
		log.Info("ready")
	} else {
		log.Warn("not ready", "why", why)
	}
}
