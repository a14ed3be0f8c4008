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
	"google.golang.org/protobuf/types/known/timestamppb"

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

func timestamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

// startSubscriber runs s until stop.
func startSubscriber(t *testing.T, s *subscriber) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()
	return func() { cancel(); <-done }
}
