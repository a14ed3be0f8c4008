//go:build e2e

package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/redisconn"
	"penstock/registry"
)

// TestRealSecure: a Redis with TLS and users serves the user that scripts/redis makes,
// and a wrong issuer, password or right is told with its fix, soon, by few tries.
func TestRealSecure(t *testing.T) {
	addr, dir, plain := os.Getenv("E2E_REDIS_TLS"), os.Getenv("E2E_REDIS_SECURE"), os.Getenv("E2E_REDIS")
	if addr == "" || dir == "" || plain == "" {
		t.Fatal("E2E_REDIS_TLS and E2E_REDIS_SECURE are not set to HOST:PORT and data directory of a Redis started with REDIS_SECURE=1, or E2E_REDIS not to one without; run scripts/e2e")
	}
	right := DefaultConfig()
	right.Addr, right.Prefix = "rediss://penstock@"+addr, "penstock:"+rand.Text()+":"
	right.PasswordFile, right.CAFile = filepath.Join(dir, "penstock"), filepath.Join(dir, "ca.pem")
	right.Terminal = func(id, attempt string, _ reason.Reason) []byte { return []byte(id + attempt) }
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("wrong\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		change    func(*Config)
		said, fix string
	}{
		{"the right ones", func(*Config) {}, "", ""},
		{"another password", func(c *Config) { c.PasswordFile = wrong }, "WRONGPASS", "--redis-password-file"},
		{"no password", func(c *Config) { c.Addr, c.PasswordFile = "rediss://"+addr, "" }, "", "--redis-password-file"}, // a long request is told by hanging up,
		{"a user that may only read", func(c *Config) {
			c.Addr, c.PasswordFile = "rediss://reader@"+addr, filepath.Join(dir, "reader")
		}, "NOPERM", "+@scripting"},
		{"keys of another prefix", func(c *Config) { c.Prefix = "other:" }, "can't access at least one of the keys", "~PREFIX*"},
		{"another issuer", func(c *Config) { c.CAFile = "" }, "x509: certificate signed by unknown authority", "--redis-ca-file"},
		{"another host's name", func(c *Config) { c.Addr = strings.Replace(c.Addr, "127.0.0.1", "localhost", 1) }, "x509: ", "an address that the certificate names"},
		{"plain text", func(c *Config) { c.Addr, c.CAFile = "redis://penstock@"+addr, "" }, "re", "if the port speaks TLS, give --redis rediss://"},
		{"TLS to a port without", func(c *Config) { c.Addr = "rediss://" + plain }, "", "rediss://"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := right
			tc.change(&cfg)
			r, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- r.Run(ctx) }()
			defer func() { cancel(); <-done }()
			began := time.Now()
			var opened error
			until(t, func() bool {
				_, opened = r.Open(ctx, registry.Request{ID: "1", Lane: chat, Reply: "penstock:g", Deadline: time.Now().Add(time.Second)}, registry.Drain{Engines: 1})
				ok, why := r.Ready()
				return ok && tc.fix == "" || !ok && tc.fix != "" && strings.Contains(why, tc.said) && strings.Contains(why, tc.fix)
			})
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("told after %v, want 3 s at most", took)
			}
			if tc.fix == "" && opened != nil || tc.fix != "" && !errors.Is(opened, registry.ErrAway) {
				t.Errorf("open: %v, want ErrAway where something is wrong and only there", opened)
			}
			asking, stop := context.WithTimeout(ctx, 3*time.Second)
			defer stop()
			report, err := Inspect(asking, cfg)
			if fix := redisconn.Fix(errors.Join(err, report.Scripts)); !strings.Contains(fix, tc.fix) {
				t.Errorf("Inspect: %v, scripts %v, want the fix %q", err, report.Scripts, tc.fix)
			}
			if tc.fix == "" {
				whole(t, r)
			}
		})
	}
}

// whole takes a request through its life, as the user of the test.
func whole(t *testing.T, r *Registry) {
	ctx := t.Context()
	s := start("1", "a", chat)
	s.Reply = "penstock:g"
	c, err := r.Claim(ctx, s)
	if err != nil || c.Action != registry.Run {
		t.Fatalf("claim: %+v, %v", c, err)
	}
	_, err = r.Renew(ctx, "o", []registry.Ref{{ID: "1", Attempt: "a", Reply: "penstock:g"}})
	_, err2 := r.First(ctx, "1", "a", []byte("first"))
	_, err3 := r.Finish(ctx, "1", "a", []byte("last"), quota.Usage{})
	_, err4 := r.Cancel(ctx, "1", false)
	_, err5 := r.Engines(ctx)
	_, err6 := r.readBacklog(ctx)
	if err := errors.Join(err, err2, err3, err4, err5, err6, r.PutEngine(ctx, registry.Engine{Node: "n"}), r.Confirm(ctx, "n", []lane.Key{chat})); err != nil {
		t.Error(err)
	}
}
