//go:build e2e

package doctor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/queue/rocketmq/proxy"
	"penstock/reason"
	"penstock/registry/redis"
)

// TestRealSecure visits a broker and a Redis with TLS and users: well with the right
// ones, and with the line and the fix for what is wrong.
func TestRealSecure(t *testing.T) {
	broker, keys, addr, dir := os.Getenv("E2E_ROCKETMQ"), os.Getenv("E2E_ROCKETMQ_SECURE"), os.Getenv("E2E_REDIS_TLS"), os.Getenv("E2E_REDIS_SECURE")
	if broker == "" || keys == "" || addr == "" || dir == "" {
		t.Fatal("E2E_ROCKETMQ, E2E_ROCKETMQ_SECURE, E2E_REDIS_TLS and E2E_REDIS_SECURE are not all set; run scripts/e2e")
	}
	text, err := os.ReadFile(filepath.Join(keys, "penstock"))
	if err != nil {
		t.Fatal(err)
	}
	user := strings.Fields(string(text))
	for _, tc := range []struct {
		name   string
		change func(*proxy.Config, *redis.Config)
		checks map[string]string // that fail, and what is in their fix
	}{
		{"the right ones", func(*proxy.Config, *redis.Config) {}, nil},
		{
			"secrets", func(q *proxy.Config, r *redis.Config) {
				q.SecretKey, r.PasswordFile = "wrong", filepath.Join(dir, "reader")
			},
			map[string]string{"RocketMQ/proxy": "--rocketmq-credentials-file", "Redis/reachable": "--redis-password-file"},
		},
		{
			"issuers", func(q *proxy.Config, r *redis.Config) { q.CAFile, r.CAFile = "system", "" },
			map[string]string{"RocketMQ/proxy": "--rocketmq-ca-file", "Redis/reachable": "--redis-ca-file"},
		},
		{
			"plain text", func(q *proxy.Config, r *redis.Config) {
				q.CAFile, r.CAFile, r.Addr = "", "", "redis://penstock@"+addr
			},
			map[string]string{"RocketMQ/proxy": "--rocketmq-ca-file", "Redis/reachable": "rediss://"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q, r := proxy.DefaultConfig(), redis.DefaultConfig()
			q.Endpoint, q.AccessKey, q.SecretKey, q.CAFile = broker, user[0], user[1], filepath.Join(keys, "ca.pem")
			r.Addr, r.PasswordFile, r.CAFile = "rediss://penstock@"+addr, filepath.Join(dir, "penstock"), filepath.Join(dir, "ca.pem")
			r.Terminal = func(string, string, reason.Reason) []byte { return nil }
			tc.change(&q, &r)
			p := well().probes()
			p.Dial = func(ctx context.Context, address string) error {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				if err == nil {
					_ = conn.Close()
				}
				return err
			}
			p.RocketMQ = func(ctx context.Context) (proxy.Report, error) { return proxy.Inspect(ctx, q) }
			p.Redis = func(ctx context.Context) (redis.Report, error) { return redis.Inspect(ctx, r) }
			began := time.Now()
			failed := map[string]string{}
			for _, c := range Run(t.Context(), Config{RocketMQ: broker, Topic: q.Topic, Group: q.Group, Redis: addr}, p) {
				if c.Status == Fail {
					failed[c.Group+"/"+c.Name] = c.Fix
				}
			}
			if took := time.Since(began); took > 7*time.Second {
				t.Errorf("the visit took %v", took)
			}
			for check, fix := range tc.checks {
				if !strings.Contains(failed[check], fix) {
					t.Errorf("%s: fix %q, want one with %q", check, failed[check], fix)
				}
			}
			if len(failed) != len(tc.checks) {
				t.Errorf("failed: %v, want %v", failed, tc.checks)
			}
		})
	}
}
