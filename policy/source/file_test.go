package source_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"penstock/policy/apikey"
	"penstock/policy/source"
	"penstock/policy/source/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Stage {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		return sourcetest.Stage{
			Place: source.File{Path: path, Every: 2 * time.Millisecond},
			Write: func(text string) { write(t, path, text) },
			Remove: func() {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// TestFileIsReadEvery2s: where nothing else is said.
func TestFileIsReadEvery2s(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, "tiers: [{name: a}]\n")
		s, err := source.New(source.Config{}, source.File{Path: path}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		write(t, path, "tiers: [{name: b}]\n")
		time.Sleep(1900 * time.Millisecond)
		synctest.Wait()
		if s.Current().DefaultTier() != "a" {
			t.Error("read before its time")
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if s.Current().DefaultTier() != "b" || s.State().Age > 0.2 {
			t.Errorf("state %+v, want b in force since 100 ms", s.State())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNewNeedsAPolicy where nothing stands in.
func TestNewNeedsAPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	make := func(cfg source.Config) error {
		_, err := source.New(cfg, source.File{Path: path}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		return err
	}
	if err := make(source.Config{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
	write(t, path, "tenants: {a: {keys: [\""+apikey.Hash("k")+"\"]}}\n")
	keys, err := apikey.Parse([]byte("a: k"))
	if err != nil {
		t.Fatal(err)
	}
	if err := make(source.Config{Keys: keys}); err == nil || !strings.Contains(err.Error(), "keep them in one of the two") {
		t.Errorf("keys in both: %v", err)
	}
}
