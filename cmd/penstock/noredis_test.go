package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"

	"penstock/fleet"
	"penstock/gateway"
	"penstock/policy"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	registryredis "penstock/registry/redis"
	"penstock/response"
	responsememory "penstock/response/memory"
)

// TestNoRedis: a fleet's gateway whose Redis is gone tells everybody so within 50 ms,
// once it has not answered for a moment, and lets nobody in without a look at limits.
func TestNoRedis(t *testing.T) {
	redis := miniredis.RunT(t)
	cfg := registryredis.DefaultConfig()
	cfg.Addr, cfg.Terminal, cfg.ConfirmWait = redis.Addr(), response.Terminal, 0
	records, err := registryredis.New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse([]byte("tenants: {default: {quota: {requests-per-minute: 3600}}}"))
	if err != nil {
		t.Fatal(err)
	}
	var published atomic.Int64
	bus := responsememory.New()
	door, err := gateway.New(gateway.DefaultConfig(), gateway.Deps{
		Records: records, Directory: records, OpenMailbox: bus.Open, Policy: p, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Publish: func(context.Context, *queue.Message) error { published.Add(1); return queue.ErrFull },
		Rows: func() []fleet.Row {
			return []fleet.Row{{Node: "n", Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, FirstToken: time.Millisecond, At: time.Now()}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	go func() { _ = door.Serve(ctx, l); ended <- struct{}{} }()
	go func() { _ = records.Run(ctx); ended <- struct{}{} }()
	watch := &process{t: t, ended: make(chan struct{})}
	go watch.watchCPU()
	t.Cleanup(func() { stop(); <-ended; <-ended; close(watch.ended) })
	watch.until("the engine is known", func() bool {
		return records.PutEngine(ctx, registry.Engine{Node: "n", Models: []string{"q"}, MaxModelLen: 4096, State: reason.OK}) == nil
	})
	ask := func() (status int, why string, took time.Duration) {
		t.Helper()
		begin := time.Now()
		resp, err := http.Post("http://"+l.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"q","prompt":"x","max_tokens":5}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header.Get("X-Penstock-Reason"), time.Since(begin)
	}
	watch.until("a request comes as far as its lane", func() bool { _, why, _ := ask(); return why == reason.LaneFull.String() })
	before := published.Load()
	redis.Close()
	if status, why, _ := ask(); status != http.StatusServiceUnavailable || why != reason.RecordStoreAway.String() {
		t.Fatalf("the first without Redis: %d %q", status, why)
	}
	var longest time.Duration
	for range 100 {
		status, why, took := ask()
		if status != http.StatusServiceUnavailable || why != reason.RecordStoreAway.String() {
			t.Fatalf("without Redis: %d %q", status, why)
		}
		longest = max(longest, took)
	}
	t.Logf("the slowest of 100 was refused after %v", longest)
	if longest > 50*time.Millisecond {
		watch.bound("refused after %v, want 50 ms at most", longest)
	}
	if n := published.Load() - before; n != 0 {
		t.Errorf("%d requests were let in without Redis", n)
	}
}
