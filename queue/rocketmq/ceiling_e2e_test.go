//go:build e2e

package rocketmq

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"penstock/lane"
	"penstock/queue"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/redis"
)

// way is what a request takes through broker and Redis, in this process: as a gateway
// opens and publishes it, as an agent claims it, sends its first event and finishes it.
type way struct {
	t       *testing.T
	f       *fleet
	records *redis.Registry
	reply   string

	mu   sync.Mutex // guards what follows
	from map[string]time.Time
	took []time.Duration
	done chan struct{}
}

func newWay(t *testing.T) *way {
	addr := os.Getenv("E2E_REDIS")
	if addr == "" {
		t.Fatal("E2E_REDIS is not set to the HOST:PORT of a Redis; run scripts/e2e")
	}
	w := &way{t: t, f: newFleet(t, endpoint(t), func(c *Config) { c.Concurrency = 64 }), reply: "way:" + rand.Text(), from: map[string]time.Time{}, done: make(chan struct{}, 1<<20)}
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Del(context.Background(), w.reply).Err(); _ = client.Close() })
	if err := client.XAdd(t.Context(), &goredis.XAddArgs{Stream: w.reply, Values: []string{"from", "0"}}).Err(); err != nil {
		t.Fatal(err)
	}
	cfg := redis.DefaultConfig()
	cfg.Addr, cfg.Prefix, cfg.Deadline, cfg.Connections = addr, "way:"+rand.Text()+":", time.Second, 32
	cfg.Terminal = func(string, string, reason.Reason) []byte { return []byte("end") }
	var err error
	if w.records, err = redis.New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	w.background(w.records.Run)
	w.f.cfg.Confirmed = func(keys []lane.Key) { _ = w.records.Confirm(context.Background(), "n", keys) }
	c := w.f.consumer("n")
	c.Accept(func(lane.Key) bool { return true })
	w.background(func(ctx context.Context) error { return w.records.Watch(ctx, c.SetLanes) })
	w.background(func(ctx context.Context) error { return c.Run(ctx, w.handle) })
	return w
}

func (w *way) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func (w *way) handle(ctx context.Context, m *queue.Message, _ func()) queue.Result {
	c, err := w.records.Claim(ctx, registry.Start{ID: m.ID, Attempt: "a", Owner: "n", Lane: m.Lane, Deadline: m.Deadline, Reply: m.Reply, Tokens: 100})
	if err != nil || c.Action == registry.Suspend {
		return queue.Suspend(queue.MinSuspend)
	}
	if c.Action == registry.Run {
		_, err1 := w.records.First(ctx, m.ID, "a", []byte("first"))
		_, err2 := w.records.Finish(ctx, m.ID, "a", []byte("end"), quota.Usage{})
		if err1 != nil || err2 != nil {
			w.t.Errorf("first: %v, finish: %v", err1, err2)
		}
		w.mu.Lock()
		w.took = append(w.took, time.Since(w.from[m.ID]))
		w.mu.Unlock()
		w.done <- struct{}{}
	}
	return queue.Ack()
}

// send takes a request to the broker.
func (w *way) send(key lane.Key) error {
	ctx, id, began := w.t.Context(), rand.Text(), time.Now()
	w.mu.Lock()
	w.from[id] = began
	w.mu.Unlock()
	deadline := began.Add(time.Minute)
	a, err := w.records.Open(ctx, registry.Request{ID: id, Lane: key, Reply: w.reply, Deadline: deadline, Tokens: 100, Bytes: 2000, Limit: time.Hour}, registry.Drain{Engines: 1})
	if err != nil || a.Reason != reason.OK {
		return fmt.Errorf("open: %v, %w", a.Reason, err)
	}
	return w.f.producer.Publish(ctx, &queue.Message{Version: queue.Version, ID: id, Lane: key, Shard: a.Shard, Deadline: deadline, Reply: w.reply, Sequences: 1, Body: make([]byte, 2000)})
}

// TestRealFiguresWay prints what a request costs on its whole way but the engine, and
// how many go in a second: one at a time on an idle and on a new lane, then 32 at a
// time over 100 lanes for 10 s.
func TestRealFiguresWay(t *testing.T) {
	w := newWay(t)
	one := func(key lane.Key) {
		if err := w.send(key); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.done:
		case <-time.After(20 * time.Second):
			t.Fatal("a request does not come back")
		}
	}
	print := func(what string) {
		t.Logf("%s: open -> finished: %s", what, quantiles(w.took))
		w.took = nil
	}
	key := func(name string, i int) lane.Key {
		return lane.Key{Tier: "gold", Type: "chat", Model: "m", Tenant: fmt.Sprint(name, i)}
	}
	one(key("idle", 0))
	w.took = nil
	for range 300 {
		one(key("idle", 0))
	}
	print("idle lane")
	for i := range 100 {
		one(key("new", i))
	}
	print("new lane")

	before, began := serversCPU(t), time.Now()
	var sent atomic.Int64
	var g sync.WaitGroup
	for n := range 32 {
		g.Go(func() {
			for i := n; time.Since(began) < 10*time.Second; i += 32 {
				if err := w.send(key("many", i%100)); err != nil {
					t.Error(err)
					return
				}
				sent.Add(1)
			}
		})
	}
	g.Wait()
	published := time.Since(began)
	for range sent.Load() {
		select {
		case <-w.done:
		case <-time.After(30 * time.Second):
			t.Fatal("a request does not come back")
		}
	}
	all, after := time.Since(began), serversCPU(t)
	print("ceiling")
	t.Logf("%d requests: %.0f/s opened and published, %.0f/s to the end; broker %.2f and proxy %.2f cores", sent.Load(), float64(sent.Load())/published.Seconds(),
		float64(sent.Load())/all.Seconds(), (after["broker"]-before["broker"]).Seconds()/all.Seconds(), (after["proxy"]-before["proxy"]).Seconds()/all.Seconds())
}
