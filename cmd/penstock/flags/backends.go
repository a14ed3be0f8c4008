package flags

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	policyredis "penstock/policy/source/redis"
	"penstock/queue/rocketmq"
	registryredis "penstock/registry/redis"
	"penstock/response"
	responseredis "penstock/response/redis"
)

// Backends are the broker and the store of a fleet, as flags name them.
type Backends struct {
	RocketMQ rocketmq.Config
	Registry registryredis.Config
	Response responseredis.Config
	Policy   policyredis.Config
}

// AddBackends adds the flags of whoever needs broker and store.
func AddBackends(f *pflag.FlagSet) {
	f.String("rocketmq", "127.0.0.1:8081", "gRPC address of a RocketMQ proxy in cluster mode")
	f.String("topic", "penstock", "RocketMQ parent topic, of type LITE")
	f.String("group", "penstock-agents", "RocketMQ consumer group of the agents")
	f.String("rocketmq-credentials-file", "", "file with the broker's access key and secret key, a line each")
	f.String("rocketmq-ca-file", "", `certificate authority of the proxy, "system" for the system's; without it the connection is plain`)
	AddRedis(f)
}

// AddRedis adds the flags of whoever needs the store alone.
func AddRedis(f *pflag.FlagSet) {
	f.String("redis", "127.0.0.1:6379", "HOST:PORT of the Redis primary, or redis(s)://user:password@HOST:PORT/DB")
	f.String("redis-password-file", "", "file with the Redis password")
	f.String("redis-ca-file", "", "certificate authority of Redis; the connection is encrypted then (rediss:// goes by the system's)")
}

// ReadBackends reads the flags of AddBackends, after Load. Every error names the flag and
// its value.
func ReadBackends(f *pflag.FlagSet) (*Backends, error) {
	text := func(name string) string { v, _ := f.GetString(name); return v }
	b := &Backends{RocketMQ: rocketmq.DefaultConfig(), Registry: registryredis.DefaultConfig(), Response: responseredis.DefaultConfig()}
	b.RocketMQ.Endpoint, b.RocketMQ.Topic, b.RocketMQ.Group = text("rocketmq"), text("topic"), text("group")
	b.RocketMQ.CAFile = text("rocketmq-ca-file")
	if path := text("rocketmq-credentials-file"); path != "" {
		lines, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--rocketmq-credentials-file: %w", err)
		}
		keys := strings.Fields(string(lines))
		if len(keys) != 2 {
			return nil, fmt.Errorf("--rocketmq-credentials-file %s: %d words, want the access key and the secret key, a line each", path, len(keys))
		}
		b.RocketMQ.AccessKey, b.RocketMQ.SecretKey = keys[0], keys[1]
	}
	if err := b.ReadRedis(text("redis"), text("redis-password-file"), text("redis-ca-file")); err != nil {
		return nil, err
	}
	b.Registry.Live = response.IncarnationKey
	b.Registry.Mailbox = b.Response.MaxLen
	b.Registry.Terminal = response.Terminal
	if err := b.RocketMQ.Validate(); err != nil {
		return nil, err
	}
	return b, nil
}

// ReadRedis reads HOST:PORT or a redis:// address for all users of Redis.
func (b *Backends) ReadRedis(address, passwordFile, caFile string) error {
	u := &url.URL{Scheme: "redis", Host: address}
	if strings.Contains(address, "://") {
		var err error
		if u, err = url.Parse(address); err != nil || u.Scheme != "redis" && u.Scheme != "rediss" {
			return fmt.Errorf("--redis %q: want HOST:PORT or redis(s)://user:password@HOST:PORT/DB", Redacted(address))
		}
	}
	if host, port, err := net.SplitHostPort(u.Host); err != nil || host == "" || port == "" {
		return fmt.Errorf("--redis %q: want HOST:PORT or redis(s)://user:password@HOST:PORT/DB", Redacted(address))
	}
	b.Registry.Addr, b.Registry.PasswordFile, b.Registry.CAFile = address, passwordFile, caFile
	r := &b.Response
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
	b.Policy = policyredis.Config{Addr: r.Addr, Username: r.Username, Password: r.Password, DB: r.DB, TLS: r.TLS, Key: policyredis.DefaultKey}
	return nil
}

// Redacted is an address without its password.
func Redacted(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return address
}
