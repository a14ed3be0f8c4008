//go:build e2e

package rocketmq

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/lane"
	"penstock/queue"
)

// arrivals runs a consumer of all lanes and tells when each message came.
type arrivals struct {
	*fleet
	t  *testing.T
	mu sync.Mutex
	at map[string][]time.Time
	on chan string
}

func newArrivals(t *testing.T, f *fleet, answer func(n int) queue.Result) *arrivals {
	a := &arrivals{fleet: f, t: t, at: map[string][]time.Time{}, on: make(chan string, 100_000)}
	c := f.consumer("n")
	c.Accept(func(lane.Key) bool { return true })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
			a.mu.Lock()
			a.at[m.ID] = append(a.at[m.ID], time.Now())
			n := len(a.at[m.ID])
			a.mu.Unlock()
			a.on <- m.ID
			return answer(n)
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	a.send("warm", 0)
	a.wait()
	return a
}

func (a *arrivals) send(tenant string, n int) (id string, began time.Time) {
	a.t.Helper()
	id = fmt.Sprintf("%s-%d", tenant, n)
	began = time.Now()
	m := &queue.Message{Version: queue.Version, ID: id, Lane: lane.Key{Tier: "gold", Type: "chat", Model: "m", Tenant: tenant}, Deadline: began.Add(time.Minute), Sequences: 1, Body: make([]byte, 2000)}
	if err := a.publish(a.t.Context(), m); err != nil {
		a.t.Fatalf("publish: %v", err)
	}
	return id, began
}

func (a *arrivals) wait() string {
	a.t.Helper()
	select {
	case id := <-a.on:
		return id
	case <-time.After(30 * time.Second):
		a.t.Fatal("nothing arrives")
		return ""
	}
}

func quantiles(d []time.Duration) string {
	slices.Sort(d)
	at := func(q float64) time.Duration {
		return d[min(int(q*float64(len(d))), len(d)-1)].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("n %d min %v p50 %v p90 %v p99 %v max %v", len(d), at(0), at(.5), at(.9), at(.99), at(1))
}

// TestRealFigures prints the figures docs quote.
func TestRealFigures(t *testing.T) {
	e := endpoint(t)
	ack := func(int) queue.Result { return queue.Ack() }
	wide := func(c *Config) { c.Concurrency = 64 }
	t.Run("idle lane", func(t *testing.T) {
		a := newArrivals(t, newFleet(t, e, wide), ack)
		var whole, send []time.Duration
		for i := range 1000 {
			id, began := a.send("idle", i)
			send = append(send, time.Since(began))
			a.wait()
			whole = append(whole, a.at[id][0].Sub(began))
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("publish -> handler: %s", quantiles(whole))
		t.Logf("publish alone:      %s", quantiles(send))
	})
	t.Run("new lane", func(t *testing.T) { // announced at the same moment
		a := newArrivals(t, newFleet(t, e, wide), ack)
		var whole []time.Duration
		for i := range 100 {
			id, began := a.send(fmt.Sprintf("new%d", i), 0)
			a.wait()
			whole = append(whole, a.at[id][0].Sub(began))
		}
		t.Logf("publish and announce -> handler: %s", quantiles(whole))
	})
	t.Run("subscribe after publish", func(t *testing.T) {
		for _, late := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
			a := newArrivals(t, newFleet(t, e, wide), ack)
			var whole []time.Duration
			for i := range 30 {
				m := &queue.Message{Version: queue.Version, ID: fmt.Sprint(i), Lane: lane.Key{Tier: "gold", Tenant: fmt.Sprintf("late%d", i)}, Body: []byte("x")}
				if err := a.producer.Publish(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				time.Sleep(late)
				began := time.Now()
				a.announce(m.Lane)
				a.wait()
				whole = append(whole, a.at[m.ID][0].Sub(began))
			}
			t.Logf("subscribed %v after it was published -> handler: %s", late, quantiles(whole))
		}
	})
	t.Run("suspend", func(t *testing.T) {
		for _, d := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second} {
			again := 20
			if d >= time.Second {
				again = 4
			}
			a := newArrivals(t, newFleet(t, e, wide), func(n int) queue.Result {
				if n <= again {
					return queue.Suspend(d)
				}
				return queue.Ack()
			})
			clear(a.at)
			for len(a.on) > 0 {
				<-a.on
			}
			for i := range 4 {
				a.send(fmt.Sprintf("s%d", i), 0)
			}
			for range 4 * (again + 1) {
				a.wait()
			}
			var back []time.Duration
			a.mu.Lock()
			for _, at := range a.at {
				for i := range len(at) - 1 {
					back = append(back, at[i+1].Sub(at[i]))
				}
			}
			a.mu.Unlock()
			t.Logf("Suspend(%v) -> handler again: %s", d, quantiles(back))
		}
	})
	for _, waiting := range []bool{true, false} { // 1,000 lanes, and the directory told every 2 s
		t.Run(fmt.Sprintf("quiet lanes, waiting %t", waiting), func(t *testing.T) {
			f := newFleet(t, e, wide)
			c, _ := f.run(t, twice)
			lanes := tenants(1000, 1)
			for i := range lanes {
				lanes[i].Waiting = waiting
			}
			c.SetLanes(lanes)
			eventually(t, "subscriptions", func() bool { return testutil.ToFloat64(c.metrics.topics) == 1000 })
			time.Sleep(7 * time.Second) // the first nudges
			before := serversCPU(t)
			for range 10 {
				c.SetLanes(lanes)
				time.Sleep(2 * time.Second)
			}
			after := serversCPU(t)
			percent := func(name string) float64 { return 100 * (after[name] - before[name]).Seconds() / 20 }
			t.Logf("1,000 quiet lanes: broker %.1f %%, proxy %.1f %% of a core", percent("broker"), percent("proxy"))
		})
	}
	t.Run("ceiling", func(t *testing.T) {
		a := newArrivals(t, newFleet(t, e, wide), ack)
		const lanes, each = 100, 20
		for i := range lanes {
			a.announce(lane.Key{Tier: "gold", Type: "chat", Model: "m", Tenant: fmt.Sprintf("c%d", i)})
		}
		time.Sleep(time.Second)
		began := time.Now()
		var g sync.WaitGroup
		for w := range 16 {
			g.Go(func() {
				for i := w; i < lanes; i += 16 {
					for n := range each {
						a.send(fmt.Sprintf("c%d", i), n)
					}
				}
			})
		}
		g.Wait()
		sent := time.Since(began)
		for range lanes * each {
			a.wait()
		}
		all := time.Since(began)
		var at []time.Duration
		for _, times := range a.at {
			at = append(at, times[0].Sub(began))
		}
		t.Logf("handled after: %s", quantiles(at))
		t.Logf("%d messages: published in %v (%.0f/s), all handled after %v (%.0f/s)", lanes*each, sent, lanes*each/sent.Seconds(), all, lanes*each/all.Seconds())
	})
}

// serversCPU is what broker and proxy have used so far, by /proc.
func serversCPU(t *testing.T) map[string]time.Duration {
	t.Helper()
	out, err := exec.Command(os.Getenv("E2E_ROCKETMQ_SCRIPT"), "status").Output()
	if err != nil {
		t.Fatalf("E2E_ROCKETMQ_SCRIPT status: %v", err)
	}
	used := map[string]time.Duration{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		text, err := os.ReadFile("/proc/" + fields[2] + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		ticks := strings.Fields(rest)
		user, _ := strconv.Atoi(ticks[11])
		system, _ := strconv.Atoi(ticks[12])
		used[fields[0]] = time.Duration(user+system) * 10 * time.Millisecond
	}
	return used
}
