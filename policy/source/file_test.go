package source

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"penstock/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestChanges: a changed file is taken over within two seconds, a wrong one is told
// once and leaves the old in force, also through SIGHUP's Reload.
func TestChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, "tiers: [{name: a}]\n")
		var log bytes.Buffer
		f, err := New(Config{Path: path}, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		f.OnChange(func(p *policy.Policy) { seen = append(seen, strings.Join(p.TierNames(), "")) })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		poll := func() { time.Sleep(pollEvery + time.Millisecond); synctest.Wait() }
		first := f.Current()

		poll()
		write(t, path, "tiers: [{name: a}, {name: b}]\n")
		poll()
		if got := strings.Join(f.Current().TierNames(), ""); got != "ab" || fmt.Sprint(seen) != "[ab]" {
			t.Errorf("tiers %s, told %v; want ab", got, seen)
		}
		if len(first.Tiers) != 1 {
			t.Error("the old policy has changed")
		}
		good := f.Current()
		write(t, path, "tears: []\n")
		poll()
		poll()
		if f.Current() != good || strings.Count(log.String(), "policy refused") != 1 {
			t.Errorf("policy %v, log %q; want the old one and one line", f.Current().Hash, log.String())
		}
		if err := f.Reload(); err == nil || !strings.Contains(err.Error(), "tears") {
			t.Errorf("Reload: %v, want the fault", err)
		}
		if s := f.State(); s.Hash != good.Hash || !strings.Contains(s.Problem, "tears") || s.Age < 4 {
			t.Errorf("state %+v", s)
		}
		if got := testutil.ToFloat64(f.metrics.failures); got != 2 {
			t.Errorf("%v failures, want 2", got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		poll()
		if f.Current() != good {
			t.Error("a file that is gone took the policy with it")
		}
		write(t, path, "tiers: [{name: c}]\n")
		if err := f.Reload(); err != nil || f.Current().DefaultTier() != "c" || f.State().Problem != "" {
			t.Errorf("%v, %+v", err, f.State())
		}
		if got := testutil.CollectAndCount(f.metrics.info); got != 1 {
			t.Errorf("%d series of info, want 1", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestKeysStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, "tenants: {a: {keys: [\""+policy.HashKey("k")+"\"]}}\n")
	f, err := New(Config{Path: path}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "tenants: {a: {}}\n")
	if err := f.Reload(); err == nil || !f.Current().Authenticates() {
		t.Errorf("a reload without keys: %v; want it refused", err)
	}
	keys, err := policy.ParseKeys([]byte("a: k"))
	if err != nil {
		t.Fatal(err)
	}
	f, err = New(Config{Path: path, Keys: keys}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil || !f.Current().Authenticates() {
		t.Fatalf("keys of their own: %v", err)
	}
	write(t, path, "tenants: {a: {keys: [\""+policy.HashKey("k")+"\"]}}\n")
	if err := f.Reload(); err == nil || !strings.Contains(err.Error(), "keep them in one of the two") {
		t.Errorf("keys in both: %v", err)
	}
	if _, err := New(Config{Path: path + "x"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil {
		t.Error("no file, no error")
	}
}
