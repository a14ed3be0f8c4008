package proxy

import (
	"log/slog"
	"strings"
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"go.uber.org/zap"
)

// TestSDKLog holds that what the library logs comes here: warnings only, each place in
// its code once in a while, cut to a bound.
func TestSDKLog(t *testing.T) {
	cfg := DefaultConfig()
	if err := install(&cfg); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	LogTo(slog.New(slog.NewTextHandler(&b, nil)))
	pool := rmq.NewSimpleThreadPool("pool of the test", 1, 1)
	pool.Shutdown()
	pool.Submit(func() {}) // the library warns
	if !strings.Contains(b.String(), "pool of the test") {
		t.Fatalf("the library logs elsewhere, here only %q", b.String())
	}
	b.Reset()
	core := &sdkCore{said: map[string]said{}}
	core.log.Store(slog.New(slog.NewTextHandler(&b, nil)))
	log := zap.New(core, zap.AddCaller()).Sugar()
	for range 3 {
		log.Info("quiet")
		log.Error(strings.Repeat("loud ", 200))
	}
	if n := strings.Count(b.String(), "\n"); n != 1 || strings.Contains(b.String(), "quiet") || b.Len() > maxText+200 {
		t.Errorf("%d lines: %s", n, b.String())
	}
}
