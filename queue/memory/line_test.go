package memory

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/queue"
)

func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, nil)
		var got []string
		for _, node := range []string{"n1", "n2", "n3"} {
			_, stop := run(q, node, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
				got = append(got, node)
				if strings.HasPrefix(m.ID, "suspended") && len(got) < 5 {
					return queue.Suspend(0)
				}
				return queue.Ack()
			})
			defer stop()
			synctest.Wait()
		}
		expect := func(what string, want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s went to (-want +got):\n%s", what, diff)
			}
			got = nil
		}
		publish(t, q, message("suspended", "a", 0))
		expect("a suspended head", "n1", "n2", "n3", "n1", "n2")
		for i := range 4 {
			publish(t, q, message("1", fmt.Sprint(i), 0))
			synctest.Wait()
		}
		expect("lanes of one message", "n3", "n1", "n2", "n3")
	})
}

func TestBusyConsumerIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, func(c *Config) { c.Concurrency = 1 })
		var got []string
		wait := map[string]chan struct{}{"n1": make(chan struct{}), "n2": make(chan struct{})}
		consumers := map[string]*Consumer{}
		for node := range wait {
			c, stop := run(q, node, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
				got = append(got, m.ID+" "+node)
				<-wait[node]
				return queue.Ack()
			})
			defer stop()
			consumers[node] = c
		}
		consumers["n2"].Accept(nil)
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			publish(t, q, message(id, id, 0))
			synctest.Wait()
		}
		free := func(node string) { wait[node] <- struct{}{}; synctest.Wait() }
		consumers["n2"].Accept(all) // takes b
		synctest.Wait()
		free("n2") // takes c, which waits longest
		free("n2") // takes d
		free("n1") // takes e
		free("n2") // nothing is left
		if diff := cmp.Diff([]string{"a n1", "b n2", "c n2", "d n2", "e n1"}, got); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
		free("n1")
		wantLen(t, q, size{})
		for node, c := range consumers {
			if c.running != 0 || c.parked.Len() != 0 {
				t.Errorf("%s is left with %d handlers and %d lanes", node, c.running, c.parked.Len())
			}
		}
	})
}

// TestSuspendedCostsNoGoroutine holds that lanes that sleep, and lanes nobody
// accepts, are only memory: one timer serves all of them.
func TestSuspendedCostsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = 20_000
		q := open(t, nil)
		deliveries := 0
		var mu sync.Mutex
		_, stop := run(q, "n", func(_ context.Context, _ *queue.Message, _ func()) queue.Result {
			mu.Lock()
			defer mu.Unlock()
			if deliveries++; deliveries <= lanes {
				return queue.Suspend(time.Second)
			}
			return queue.Ack()
		})
		defer stop()
		before := runtime.NumGoroutine()
		for i := range lanes {
			publish(t, q, message(fmt.Sprint(i), fmt.Sprint(i), 0))
		}
		synctest.Wait()
		if now := runtime.NumGoroutine(); now > before+1 {
			t.Errorf("%d goroutines with %d suspended lanes, %d before", now, lanes, before)
		}
		q.mu.Lock()
		asleep := len(q.asleep)
		q.mu.Unlock()
		if asleep != lanes {
			t.Errorf("%d lanes asleep, want %d", asleep, lanes)
		}
		time.Sleep(2 * time.Second)
		wantLen(t, q, size{})
	})
}

// BenchmarkSuspend is one delivery and one return of a suspended head among
// sleeping lanes.
func BenchmarkSuspend(b *testing.B) {
	for _, lanes := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(lanes), func(b *testing.B) {
			q := open(b, nil)
			c := &Consumer{queue: q, match: all, order: 1}
			c.serve = func(*item) { c.handlers.Done() }
			q.consumers = []*Consumer{c}
			var last *item
			for i := range lanes {
				publish(b, q, message(fmt.Sprint(i), fmt.Sprint(i), 0))
				last = q.items[fmt.Sprint(i)]
				q.settle(c, last, queue.Suspend(queue.MaxSuspend))
			}
			b.ReportAllocs()
			for b.Loop() {
				last.due = time.Time{}
				q.place(last.line)
				q.settle(c, last, queue.Suspend(queue.MaxSuspend))
			}
			b.StopTimer()
			c.handlers.Wait()
			q.alarm.Stop()
		})
	}
}
