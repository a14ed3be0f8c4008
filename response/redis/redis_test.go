package redis

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"penstock/response"
	"penstock/response/responsetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// quick has the bounds of a fleet in milliseconds.
func quick(addr, prefix string) Config {
	c := DefaultConfig()
	c.Addr, c.Prefix = addr, prefix
	c.Renew, c.Alive, c.Keep = 10*time.Millisecond, 500*time.Millisecond, 2*time.Second
	c.Timeout, c.GoneAfter, c.Drain = 200*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	return c
}

// background runs run until the test ends.
func background(t testing.TB, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func newReader(t testing.TB, c Config) *Reader {
	t.Helper()
	r, err := NewReader(c, discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("NewReader: %v", err)
	}
	r.link.Every = 20 * time.Millisecond
	return r
}

func newWriter(t testing.TB, c Config) *Writer {
	t.Helper()
	w, err := NewWriter(c, discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("NewWriter: %v", err)
	}
	w.link.Every = 20 * time.Millisecond
	return w
}

func pair(t testing.TB, c Config) (*Reader, *Writer) {
	t.Helper()
	r, w := newReader(t, c), newWriter(t, c)
	background(t, w.Run)
	background(t, r.Run)
	return r, w
}

// conform runs the suite against a Redis. An address of the suite is one incarnation
// after the other, for a gateway has a new one with every start.
func conform(t *testing.T, config func(*testing.T) Config) {
	responsetest.Run(t, responsetest.Spec{
		Start: func(t *testing.T) responsetest.Harness {
			c := config(t)
			c.Buffer = 64 << 20 // the suite appends faster than any engine
			r, w := pair(t, c)
			var mu sync.Mutex
			starts := map[string]int{}
			name := func(reply string) string { return fmt.Sprintf("%s.%d", reply, starts[reply]) }
			return responsetest.Harness{
				Open: func(reply string, handle func(response.Event)) (func(), error) {
					mu.Lock()
					defer mu.Unlock()
					starts[reply]++
					return r.Open(name(reply), handle)
				},
				Append: func(reply string, event []byte) error {
					mu.Lock()
					incarnation := name(reply)
					mu.Unlock()
					e, err := response.Parse(event)
					if err != nil {
						return err
					}
					return w.Append(r.Address(incarnation, e.ID), event)
				},
			}
		},
		Lag: 10 * time.Second,
	})
}

func TestConformance(t *testing.T) {
	conform(t, func(t *testing.T) Config { return quick(miniredis.RunT(t).Addr(), "test") })
}
