package rocketmq

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/queuetest"
)

// testLog shows what is logged when PENSTOCK_TEST_LOG is set.
func testLog() *slog.Logger {
	if os.Getenv("PENSTOCK_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// fleet is a producer and consumers on one topic with a lane directory between them,
// as the record store is in a real one. Its lanes have names nobody else has.
type fleet struct {
	t        testing.TB
	cfg      Config
	producer *Producer
	width    int

	mu        sync.Mutex
	lanes     []lane.Entry
	consumers []*Consumer
}

func newFleet(t testing.TB, endpoint string, change func(*Config)) *fleet {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Endpoint, cfg.Concurrency, cfg.PublishTimeout = endpoint, 4, 20*time.Second
	cfg.Secret = []byte(rand.Text())
	if dir := os.Getenv("E2E_ROCKETMQ_SECURE"); dir != "" && endpoint == os.Getenv("E2E_ROCKETMQ") {
		cfg.CAFile = filepath.Join(dir, "ca.pem")
		cfg.AccessKey, cfg.SecretKey = user(t, dir, "penstock")
	}
	if change != nil {
		change(&cfg)
	}
	p, err := NewProducer(cfg, testLog(), prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("NewProducer: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Producer.Run = %v", err)
		}
	})
	return &fleet{t: t, cfg: cfg, producer: p, width: 1}
}

// user is what scripts/rocketmq made of a user, in dir.
func user(t testing.TB, dir, name string) (accessKey, secretKey string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	accessKey, secretKey, _ = strings.Cut(strings.TrimSpace(string(text)), "\n")
	return accessKey, secretKey
}

func (f *fleet) publish(ctx context.Context, m *queue.Message) error {
	f.announce(m.Lane)
	return f.producer.Publish(ctx, m)
}

func (f *fleet) announce(key lane.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.lanes {
		if e.Key == key {
			return
		}
	}
	f.lanes = append(f.lanes, lane.Entry{Key: key, Width: f.width})
	for _, c := range f.consumers {
		c.SetLanes(f.lanes)
	}
}

func (f *fleet) consumer(node string) *Consumer {
	f.t.Helper()
	cfg := f.cfg
	cfg.Node = node
	c, err := NewConsumer(cfg, testLog().With("node", node), prometheus.NewRegistry())
	if err != nil {
		f.t.Fatalf("NewConsumer: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.consumers = append(f.consumers, c)
	c.SetLanes(f.lanes)
	return c
}

// conformance runs the contract's suite, its cases side by side: most of their time
// is the library's fixed waits.
func conformance(t *testing.T, open func(t *testing.T) *fleet, lag, quiet time.Duration) {
	queuetest.Run(t, queuetest.Spec{
		In: func(t *testing.T, run func(*testing.T)) { t.Parallel(); run(t) },
		Open: func(t *testing.T) queuetest.Harness {
			f := open(t)
			return queuetest.Harness{
				Publish:  f.publish,
				Consumer: func(node string) queuetest.Consumer { return f.consumer(node) },
				Close:    f.producer.Close,
			}
		},
		Concurrency: 4, Lag: lag, Quiet: quiet,
	})
}

// run runs a consumer of all lanes until the test ends; deliveries are counted by id.
func (f *fleet) run(t *testing.T, h func(m *queue.Message, n int) queue.Result) (c *Consumer, times func(id string) int) {
	t.Helper()
	c = f.consumer("n")
	c.Accept(func(lane.Key) bool { return true })
	var mu sync.Mutex
	seen := map[string]int{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
			mu.Lock()
			seen[m.ID]++
			n := seen[m.ID]
			mu.Unlock()
			return h(m, n)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return c, func(id string) int {
		mu.Lock()
		defer mu.Unlock()
		return seen[id]
	}
}

func (f *fleet) send(t *testing.T, id string) *queue.Message {
	t.Helper()
	m := &queue.Message{Version: queue.Version, ID: id, Lane: lane.Key{Tier: "t", Tenant: id}, Body: []byte(id)}
	if err := f.publish(t.Context(), m); err != nil {
		t.Fatalf("publish %s: %v", id, err)
	}
	return m
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

func twice(_ *queue.Message, n int) queue.Result {
	if n == 1 {
		return queue.Suspend(queue.MinSuspend)
	}
	return queue.Ack()
}
