//go:build e2e

package rocketmq

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
)

// secured is the directory of keys and certificates of a broker that was started with
// RMQ_SECURE=1. With E2E_ROCKETMQ_SECURE set all real tests use it.
func secured(t *testing.T) string {
	dir := os.Getenv("E2E_ROCKETMQ_SECURE")
	if dir == "" {
		t.Fatal("E2E_ROCKETMQ_SECURE is not set to $ROCKETMQ_DIR/secure of a stack started with RMQ_SECURE=1; run scripts/e2e")
	}
	return dir
}

// TestRealSecure: what is wrong with a certificate, a user or its rights is said by
// producer and consumer, with what to change, soon; tries are few and leave nothing
// behind. That the right ones work is what all other real tests show.
func TestRealSecure(t *testing.T) {
	e, dir := endpoint(t), secured(t)
	_, other := selfSigned(t)
	as := func(name string) func(*Config) {
		return func(c *Config) { c.AccessKey, c.SecretKey = user(t, dir, name) }
	}
	for _, tc := range []struct {
		name      string
		change    func(*Config)
		said, fix string
		mayOpen   bool // publishing is allowed
	}{
		{"another secret", func(c *Config) { c.SecretKey = "wrong" }, "check signature failed", "--rocketmq-credentials-file", false},
		{"an unknown user", func(c *Config) { c.AccessKey = "nobody" }, "User:nobody is not found", "--rocketmq-credentials-file", false},
		{"no user", func(c *Config) { c.AccessKey, c.SecretKey = "", "" }, "UNAUTHORIZED", "--rocketmq-credentials-file", false},
		{"a user without rights", as("stranger"), "no permission to access Topic:penstock", "createAcl", false},
		{"a user who may only publish", func(c *Config) { as("publisher")(c); c.PublishTimeout = 4 * time.Second }, "no permission to access", "createAcl", true},
		{"another issuer", func(c *Config) { c.CAFile = other }, "x509: certificate signed by unknown authority", "--rocketmq-ca-file", false},
		{"the system's issuers", func(c *Config) { c.CAFile = "system" }, "x509: certificate signed by unknown authority", "--rocketmq-ca-file", false},
		{"another host's name", func(c *Config) { c.Endpoint = strings.Replace(e, "127.0.0.1", "127.0.0.2", 1) }, "x509: certificate is valid for", "--rocketmq address", false},
		{"plain text", func(c *Config) { c.CAFile = "" }, "server preface", "--rocketmq-ca-file", false},
	} {
		t.Run(tc.name, func(t *testing.T) { // one after the other: the transport is the process's
			f := newFleet(t, e, func(c *Config) { c.PublishTimeout = time.Second; tc.change(c) })
			began := time.Now()
			c, _ := f.run(t, func(*queue.Message, int) queue.Result { return queue.Ack() })
			err := f.publish(t.Context(), &queue.Message{Version: queue.Version, ID: "1", Lane: lane.Key{Tenant: "a"}, Body: []byte("x")})
			if tc.mayOpen && err != nil {
				t.Errorf("publish: %v, want none", err)
			}
			if !tc.mayOpen && (!errors.Is(err, queue.ErrAway) || !strings.Contains(err.Error(), tc.said) || !strings.Contains(err.Error(), tc.fix)) {
				t.Errorf("publish: %v, want ErrAway that says %q and %q", err, tc.said, tc.fix)
			}
			eventually(t, "the consumer says why", func() bool {
				ok, why := c.Ready()
				return !ok && strings.Contains(why, tc.said) && strings.Contains(why, tc.fix)
			})
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("told after %v, want 4 s at most", took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			r, err := proxy.Inspect(ctx, f.cfg.Config)
			if err != nil {
				t.Fatal(err)
			}
			a := r.Route
			if tc.mayOpen {
				a = r.Group
			}
			if !strings.Contains(a.String(), tc.said) || !strings.Contains(a.Fix(), tc.fix) {
				t.Errorf("Inspect: %q with the fix %q, want %q and %q", a, a.Fix(), tc.said, tc.fix)
			}
		})
	}
}

// TestRealSecureLater: the user is made after the agent has started; nothing is left of
// the tries before.
func TestRealSecureLater(t *testing.T) {
	e, dir := endpoint(t), secured(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	_, other := selfSigned(t)
	copyFile(t, other, file)
	f := newFleet(t, e, func(c *Config) { c.CAFile, c.PublishTimeout = file, 20*time.Second })
	_, times := f.run(t, twice)
	eventually(t, "the reason", func() bool {
		_, why := f.producer.Ready()
		return strings.Contains(why, "x509")
	})
	before := runtime.NumGoroutine()
	time.Sleep(3 * time.Second) // about four tries of each
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines, %d after four more tries: they pile up", before, after)
	}
	copyFile(t, filepath.Join(dir, "ca.pem"), file)
	f.send(t, "a")
	eventually(t, "suspended once and acknowledged", func() bool { return times("a") == 2 })
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
