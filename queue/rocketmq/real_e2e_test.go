//go:build e2e

package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
)

// endpoint is the proxy of a real broker, started by scripts/e2e.
func endpoint(t testing.TB) string {
	e := os.Getenv("E2E_ROCKETMQ")
	if e == "" {
		t.Fatal("E2E_ROCKETMQ is not set to the HOST:PORT of a RocketMQ proxy; run scripts/e2e")
	}
	return e
}

func TestRealConformance(t *testing.T) {
	e := endpoint(t)
	conformance(t, func(t *testing.T) *fleet { return newFleet(t, e, nil) }, 15*time.Second, 500*time.Millisecond)
}

// TestRealSuspendedOften: a hundred Suspends move nothing to a dead letter, and what
// waits behind keeps its place.
func TestRealSuspendedOften(t *testing.T) {
	t.Parallel()
	f := newFleet(t, endpoint(t), nil)
	var mu sync.Mutex
	var order []string
	_, times := f.run(t, func(m *queue.Message, n int) queue.Result {
		if m.ID == "first" && n <= 100 {
			return queue.Suspend(queue.MinSuspend)
		}
		mu.Lock()
		order = append(order, m.ID)
		mu.Unlock()
		return queue.Ack()
	})
	key := lane.Key{Tenant: "patient"}
	for _, id := range []string{"first", "second"} {
		if err := f.publish(t.Context(), &queue.Message{Version: 1, ID: id, Lane: key, Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both handled", func() bool { return times("second") > 0 })
	if times("first") != 101 || order[0] != "first" {
		t.Errorf("the first was delivered %d times, handled in the order %v; want 101 and the first first", times("first"), order)
	}
}

// TestRealLease: a run of more than a lease is one delivery.
func TestRealLease(t *testing.T) {
	t.Parallel()
	f := newFleet(t, endpoint(t), nil)
	hold := proxy.Lease + 6*time.Second
	done := make(chan time.Time, 1)
	_, times := f.run(t, func(m *queue.Message, n int) queue.Result {
		if m.ID == "long" && n == 1 {
			time.Sleep(hold)
			done <- time.Now()
		}
		return queue.Ack()
	})
	key := lane.Key{Tenant: "long"}
	for _, id := range []string{"long", "next"} {
		if err := f.publish(t.Context(), &queue.Message{Version: 1, ID: id, Lane: key, Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	at := <-done
	eventually(t, "the next one", func() bool { return times("next") > 0 })
	t.Logf("held %v, the next came %v later", hold, time.Since(at).Round(time.Millisecond))
	if times("long") != 1 || times("next") != 1 {
		t.Errorf("delivered %d and %d times, want once each", times("long"), times("next"))
	}
}

// TestRealWaiting: what waited before the first agent started is all delivered, in
// order in each shard.
func TestRealWaiting(t *testing.T) {
	t.Parallel()
	const lanes, each = 100, 20
	f := newFleet(t, endpoint(t), func(c *Config) { c.Concurrency = 64 })
	var g sync.WaitGroup
	for w := range 8 {
		g.Go(func() {
			for i := w; i < lanes; i += 8 {
				for n := range each {
					m := &queue.Message{Version: 1, ID: fmt.Sprintf("%d-%02d", i, n), Lane: lane.Key{Tenant: fmt.Sprint(i)}, Body: fmt.Appendf(nil, "%d %d", i, n)}
					if err := f.publish(t.Context(), m); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	g.Wait()
	var mu sync.Mutex
	next := map[string]int{}
	handled := 0
	began := time.Now()
	f.run(t, func(m *queue.Message, _ int) queue.Result {
		mu.Lock()
		defer mu.Unlock()
		_, place, _ := strings.Cut(m.ID, "-")
		if want := fmt.Sprintf("%02d", next[m.Lane.Tenant]); place != want {
			t.Errorf("lane %s: %s came, want %s", m.Lane.Tenant, place, want)
		}
		next[m.Lane.Tenant]++
		handled++
		return queue.Ack()
	})
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		n := handled
		mu.Unlock()
		if n == lanes*each {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d of %d handled in a minute", n, lanes*each)
		}
	}
	t.Logf("%d messages that waited handled %v after the start of Run", lanes*each, time.Since(began).Round(time.Millisecond))
}

// TestRealOdd: hostile names and the largest body arrive, one more byte is refused.
func TestRealOdd(t *testing.T) {
	t.Parallel()
	f := newFleet(t, endpoint(t), nil)
	bodies := make(chan int, 10)
	f.run(t, func(m *queue.Message, _ int) queue.Result { bodies <- len(m.Body); return queue.Ack() })
	for name, m := range map[string]*queue.Message{
		"NUL":           {ID: "1", Lane: lane.Key{Tier: "../", Type: "\x01\x02", Model: "a/b", Tenant: "\x00\xff"}, Body: []byte("x")},
		"10 kB":         {ID: "2", Lane: lane.Key{Tenant: strings.Repeat("x", 10_000)}, Body: []byte("x")},
		"empty":         {ID: "3"},
		"largest":       {ID: "4", Lane: lane.Key{Tenant: "large"}, Body: make([]byte, proxy.MaxBody)},
		"unicode twins": {ID: "5", Lane: lane.Key{Tenant: "\u00e9e\u0301"}, Body: []byte("x")},
	} {
		m.Version = queue.Version
		if err := f.publish(t.Context(), m); err != nil {
			t.Errorf("%s: publish: %v", name, err)
			continue
		}
		select {
		case n := <-bodies:
			if n != len(m.Body) {
				t.Errorf("%s: a body of %d bytes arrived, want %d", name, n, len(m.Body))
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: did not arrive", name)
		}
	}
}

// TestRealPoison: what is not ours in a lane is suspended and counted, and holds up
// nobody but its own shard.
func TestRealPoison(t *testing.T) {
	t.Parallel()
	f := newFleet(t, endpoint(t), nil)
	c, times := f.run(t, func(m *queue.Message, _ int) queue.Result {
		if m.Version != queue.Version {
			return queue.Suspend(queue.MaxSuspend) // as the agent does
		}
		return queue.Ack()
	})
	f.send(t, "before")
	eventually(t, "the first message", func() bool { return times("before") == 1 })
	huge := strings.Repeat("\xff\x00", proxy.MaxBody/2)
	for name, tc := range map[string]struct {
		properties map[string]string
		body       string
	}{
		"garbage":        {nil, "\x00\xff garbage"},
		"one byte":       {map[string]string{pVersion: "1"}, "x"},
		"huge":           {map[string]string{pVersion: "1", pPrompt: "-1", pID: "huge"}, huge},
		"no number":      {map[string]string{pVersion: "one", pID: "no number"}, "x"},
		"broken escapes": {map[string]string{pVersion: "1", pID: "%zz"}, "x"},
		"version 99":     {map[string]string{pVersion: "99", pID: "version 99"}, "x"},
	} {
		key := lane.Key{Tier: "poison", Tenant: name}
		f.announce(key)
		if err := f.producer.client.Load().Send(t.Context(), lane.Name(f.cfg.Secret, key, 0), tc.properties, []byte(tc.body)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	count := func(what string) float64 { return testutil.ToFloat64(c.metrics.failures.WithLabelValues(what)) }
	eventually(t, "five unreadable ones and one of another version", func() bool { return count(failureMalformed) >= 5 && count(failureVersion) >= 1 })
	began := time.Now()
	f.send(t, "after")
	eventually(t, "another lane goes on", func() bool { return times("after") == 1 })
	t.Logf("a new lane beside six poisoned ones: %v", time.Since(began).Round(time.Millisecond))
	if n := count(failureMalformed); n > 10 {
		t.Errorf("five unreadable messages were looked at %v times", n)
	}
	began = time.Now()
	err := f.publish(t.Context(), &queue.Message{Version: queue.Version, ID: "5 MB", Lane: lane.Key{Tenant: "after"}, Body: make([]byte, 5_000_000)})
	if took := time.Since(began); !errors.Is(err, queue.ErrTooLarge) || !strings.Contains(err.Error(), "maxMessageSize") || took > time.Second {
		t.Errorf("a body of 5 MB: %v after %v, want ErrTooLarge that names the limit, before it is sent", err, took)
	}
}

// TestRealManyBodies: the library checks a digest of every body; the broker's must
// agree with it.
func TestRealManyBodies(t *testing.T) {
	t.Parallel()
	f := newFleet(t, endpoint(t), nil)
	var got sync.Map
	f.run(t, func(m *queue.Message, _ int) queue.Result { got.Store(string(m.Body), true); return queue.Ack() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const n = 300 // one digest in 16 begins with a zero
	for i := range n {
		if err := f.publish(ctx, &queue.Message{Version: 1, ID: fmt.Sprint(i), Lane: lane.Key{Tenant: fmt.Sprint(i % 5)}, Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all bodies", func() bool {
		all := 0
		got.Range(func(any, any) bool { all++; return true })
		return all == n
	})
}

// TestRealNewLanes: a lane's first message arrives soon, also while it is being
// subscribed and others are suspended: a broker may lose its event then.
func TestRealNewLanes(t *testing.T) {
	t.Parallel()
	e := endpoint(t)
	var mu sync.Mutex
	var took []time.Duration
	t.Run("fleets", func(t *testing.T) {
		for i := range 16 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, e, nil)
				came := make(chan struct{}, 1000)
				f.run(t, func(*queue.Message, int) queue.Result { came <- struct{}{}; return queue.Suspend(queue.MaxSuspend) })
				for n := range 9 {
					began := time.Now()
					f.send(t, fmt.Sprint(n))
					select {
					case <-came:
					case <-time.After(5 * time.Second):
						t.Fatalf("lane %d: its first message did not arrive in 5 s", n)
					}
					if n > 0 { // before, the consumer starts
						mu.Lock()
						took = append(took, time.Since(began))
						mu.Unlock()
					}
				}
			})
		}
	})
	t.Logf("first message of a new lane: %s", quantiles(took))
}
