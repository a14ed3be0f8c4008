//go:build e2e

package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// broker runs a command of scripts/rocketmq/rocketmq.sh.
func broker(t *testing.T, command string) {
	t.Helper()
	script := os.Getenv("E2E_ROCKETMQ_SCRIPT")
	if script == "" {
		t.Fatal("E2E_ROCKETMQ_SCRIPT is not set to scripts/rocketmq/rocketmq.sh of the running broker; run scripts/e2e")
	}
	if out, err := exec.Command(script, command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// traffic publishes to ten lanes and consumes them until it is stopped.
type traffic struct {
	mu      sync.Mutex
	sent    map[string]time.Time // confirmed by the broker
	handled map[string]int
	late    map[string]time.Duration
	failed  int
	last    time.Time              // a delivery
	opened  map[lane.Key]time.Time // when the newest one delivered was published
	sentAt  time.Time              // last confirmed publish
}

func (tr *traffic) run(t *testing.T, f *fleet) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	c := f.consumer("n")
	c.Accept(func(lane.Key) bool { return true })
	g.Go(func() {
		_ = c.Run(ctx, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.handled[m.ID]++
			tr.last = time.Now()
			if m.Opened.After(tr.opened[m.Lane]) {
				tr.opened[m.Lane] = m.Opened
			}
			tr.late[m.ID] = max(tr.late[m.ID], time.Since(m.Opened))
			if tr.handled[m.ID]%4 == 1 {
				return queue.Suspend(100 * time.Millisecond)
			}
			return queue.Ack()
		})
	})
	publishing, quit := context.WithCancel(ctx)
	var pubs sync.WaitGroup
	for l := range 10 {
		pubs.Go(func() {
			for n := 0; publishing.Err() == nil; n++ {
				m := &queue.Message{Version: queue.Version, ID: fmt.Sprintf("%d-%d", l, n), Lane: lane.Key{Tenant: fmt.Sprint(l)}, Opened: time.Now(), Body: []byte("x")}
				err := f.publish(publishing, m)
				tr.mu.Lock()
				if err == nil {
					tr.sent[m.ID] = time.Now()
					tr.sentAt = time.Now()
				} else if !errors.Is(err, context.Canceled) {
					tr.failed++
				}
				tr.mu.Unlock()
				wait(publishing, 300*time.Millisecond)
			}
		})
	}
	return func() {
		quit()
		pubs.Wait()
		tr.until(t, 40*time.Second, "all messages handled", func() bool { return tr.missing() == 0 })
		cancel()
		g.Wait()
	}
}

// served reports whether every lane has delivered what was published after at.
func (tr *traffic) served(at time.Time) bool {
	for _, opened := range tr.opened {
		if !opened.After(at) {
			return false
		}
	}
	return true
}

func (tr *traffic) missing() (n int) {
	for id := range tr.sent {
		if tr.handled[id] < 2 {
			n++
		}
	}
	return n
}

func (tr *traffic) until(t *testing.T, limit time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		tr.mu.Lock()
		ok := done()
		tr.mu.Unlock()
		if ok {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Errorf("not within %v: %s (%d missing)", limit, what, tr.missing())
			return time.Since(began)
		}
	}
}

func TestRealFaults(t *testing.T) {
	e := endpoint(t)
	for _, tc := range []struct {
		name, end, start string
	}{
		{"proxy killed", "kill-proxy", "start-proxy"},
		{"broker killed", "kill-broker", "start-broker"},
		{"broker stopped", "term-broker", "start-broker"},
		{"name server killed", "kill-namesrv", "start-namesrv"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := &traffic{sent: map[string]time.Time{}, handled: map[string]int{}, late: map[string]time.Duration{}, opened: map[lane.Key]time.Time{}}
			f := newFleet(t, e, func(c *Config) { c.Concurrency, c.PublishTimeout = 64, 3*time.Second })
			stop := tr.run(t, f)
			tr.until(t, 30*time.Second, "traffic", func() bool { return len(tr.handled) > 50 })
			broker(t, tc.end)
			time.Sleep(3 * time.Second)
			broker(t, tc.start)
			ready := time.Now()
			sends := tr.until(t, 15*time.Second, "a publish", func() bool { return tr.sentAt.After(ready) })
			tr.until(t, 10*time.Second, "a delivery", func() bool { return tr.last.After(ready) })
			again := time.Since(ready)
			tr.until(t, 10*time.Second, "a delivery in every lane", func() bool { return tr.served(ready) })
			every := time.Since(ready)
			time.Sleep(3 * time.Second)
			stop()
			tr.mu.Lock()
			defer tr.mu.Unlock()
			twice := 0
			for _, n := range tr.handled {
				if n > 2 {
					twice++
				}
			}
			worst := time.Duration(0)
			for _, d := range tr.late {
				worst = max(worst, d)
			}
			t.Logf("%s: publishing again after %v, receiving after %v, in every lane after %v; %d sent, %d failed, %d missing, %d delivered more often than asked, slowest %v",
				tc.name, sends, again, every, len(tr.sent), tr.failed, tr.missing(), twice, worst)
		})
	}
}
