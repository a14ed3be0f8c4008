//go:build e2e

package redis

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/response"
)

// TestRealSecure: events go over TLS as the user that scripts/redis makes; where
// something is wrong both sides say what, are not ready, and an attempt is given up
// when its events have waited for BufferFor.
func TestRealSecure(t *testing.T) {
	addr, dir := os.Getenv("E2E_REDIS_TLS"), os.Getenv("E2E_REDIS_SECURE")
	if addr == "" || dir == "" {
		t.Fatal("E2E_REDIS_TLS and E2E_REDIS_SECURE are not set to HOST:PORT and data directory of a Redis started with REDIS_SECURE=1; run scripts/e2e")
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	issuer := x509.NewCertPool()
	issuer.AppendCertsFromPEM([]byte(read("ca.pem")))
	for _, tc := range []struct {
		name   string
		change func(*Config)
		said   string
	}{
		{"the right ones", func(*Config) {}, ""},
		{"another password", func(c *Config) { c.Password = "wrong" }, "WRONGPASS"},
		{"no password", func(c *Config) { c.Username, c.Password = "", "" }, "NOAUTH"},
		{"a user that may only read", func(c *Config) { c.Username, c.Password = "reader", read("reader") }, "NOPERM"},
		{"another issuer", func(c *Config) { c.TLS = &tls.Config{ServerName: "127.0.0.1"} }, "x509: "},
		{"plain text", func(c *Config) { c.TLS = nil }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := quick(addr, "penstock:"+rand.Text())
			c.Username, c.Password, c.BufferFor = "penstock", read("penstock"), 500*time.Millisecond
			c.TLS = &tls.Config{RootCAs: issuer, ServerName: "127.0.0.1"}
			tc.change(&c)
			var said records
			log := slog.New(slog.NewTextHandler(&said, nil))
			r, err := NewReader(c, log, prometheus.NewRegistry())
			w, err2 := NewWriter(c, log, prometheus.NewRegistry())
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			background(t, w.Run)
			background(t, r.Run)
			s := newSeen()
			open(t, r, "gw", s)
			st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
			st.must()
			if tc.name == "the right ones" {
				s.until(t, "the event", s.has("a", st.seq))
				return
			}
			out := response.NewWriter("b", "b", r.Address("gw", "b"), w.Append)
			eventually(t, "an attempt is given up", func() bool {
				return errors.Is(out.Append(response.Event{Kind: response.Chunk, Payload: []byte("x")}), ErrAway)
			})
			if r.Ready() || w.Ready() {
				t.Errorf("ready: reader %t, writer %t; want neither", r.Ready(), w.Ready())
			}
			text := said.String()
			if strings.Count(text, "mailbox cannot be read") != c.Shards || !strings.Contains(text, "redis is away, events wait") || strings.Count(text, tc.said) < 2 {
				t.Errorf("logged, want each side once with %q:\n%s", tc.said, text)
			}
		})
	}
}

// records is what was logged.
type records struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.Write(p)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.String()
}
