package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"penstock/lane"
	"penstock/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func all(lane.Key) bool { return true }

func open(t testing.TB, change func(*Config)) *Queue {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	q, err := New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return q
}

func message(id, tenant string, body int) *queue.Message {
	return &queue.Message{ID: id, Lane: lane.Key{Model: "m", Tenant: tenant}, Body: make([]byte, body)}
}

func publish(t testing.TB, q *Queue, m *queue.Message) {
	t.Helper()
	if err := q.Publish(context.Background(), m); err != nil {
		t.Fatalf("publish %s: %v", m.ID, err)
	}
}

// run runs a consumer until the returned stop.
func run(q *Queue, node string, h queue.Handler) (c *Consumer, stop func()) {
	c = q.Consumer(node)
	c.Accept(all)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx, h) })
	return c, func() { cancel(); wg.Wait() }
}

type size struct {
	Lanes, Messages int
	Bytes           int64
}

func wantLen(t *testing.T, q *Queue, want size) {
	t.Helper()
	var got size
	got.Lanes, got.Messages, got.Bytes = q.Len()
	if got != want {
		t.Errorf("Len = %+v, want %+v", got, want)
	}
}

func TestValidate(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"LaneRequests": func(c *Config) { c.LaneRequests = 0 },
		"LaneBytes":    func(c *Config) { c.LaneBytes = Overhead - 1 },
		"TotalBytes":   func(c *Config) { c.TotalBytes = c.LaneBytes - 1 },
		"Concurrency":  func(c *Config) { c.Concurrency = -1 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("New with a bad %s = %v, want an error naming it", field, err)
		}
	}
}

func TestBytesAreBounded(t *testing.T) {
	q := open(t, func(c *Config) { c.LaneBytes, c.TotalBytes = 4*Overhead, 6*Overhead })
	publish(t, q, message("1", "a", 2*Overhead)) // a: 3
	for _, tc := range []struct {
		name, id, tenant string
		body             int
		full             bool
	}{
		{"one byte past the lane", "2", "a", 1, true},
		{"up to the lane's bound", "2", "a", 0, false}, // a: 4
		{"one byte past the total", "3", "b", Overhead + 1, true},
		{"up to the total", "3", "b", Overhead, false}, // b: 2
		{"nothing more", "4", "c", 0, true},
	} {
		err := q.Publish(t.Context(), message(tc.id, tc.tenant, tc.body))
		if errors.Is(err, queue.ErrFull) != tc.full || (err != nil) != tc.full {
			t.Errorf("%s: Publish = %v, full is %v", tc.name, err, tc.full)
		}
	}
	wantLen(t, q, size{2, 3, 6 * Overhead})
	q.Discard("1")
	publish(t, q, message("1", "a", 2*Overhead)) // what it took is free again
	for _, id := range []string{"1", "2", "3"} {
		if !q.Discard(id) {
			t.Errorf("Discard(%s) = false", id)
		}
	}
	wantLen(t, q, size{})
}

func TestPublishNeedsAnIDOfItsOwn(t *testing.T) {
	q := open(t, nil)
	if err := q.Publish(t.Context(), message("", "a", 0)); err == nil {
		t.Error("a message without an id was taken")
	}
	publish(t, q, message("1", "a", 0))
	if err := q.Publish(t.Context(), message("1", "b", 0)); err == nil {
		t.Error("an id that is queued was taken again")
	}
	wantLen(t, q, size{1, 1, Overhead})
	q.Discard("1")
	publish(t, q, message("1", "b", 0))
}

func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, nil)
		var got []string
		handed := make(chan queue.Result)
		_, stop := run(q, "n", func(_ context.Context, m *queue.Message, started func()) queue.Result {
			got = append(got, m.ID)
			if m.ID == "running" {
				started()
			}
			return <-handed
		})
		defer stop()
		for _, id := range []string{"suspended", "waits", "running", "last"} {
			publish(t, q, message(id, "a", 10))
		}
		discard := func(id string, want bool) {
			t.Helper()
			synctest.Wait()
			if ok := q.Discard(id); ok != want {
				t.Errorf("Discard(%s) = %v, want %v", id, ok, want)
			}
		}
		discard("unknown", false)
		discard("suspended", false) // its handler has it
		handed <- queue.Suspend(time.Second)
		discard("waits", true)
		discard("suspended", true) // the lane goes on at once, not in a second
		synctest.Wait()
		wantLen(t, q, size{1, 2, 2 * (Overhead + 10)})
		discard("running", false)
		discard("last", false)
		handed <- queue.Ack()
		handed <- queue.Ack()
		synctest.Wait()
		if diff := cmp.Diff([]string{"suspended", "running", "last"}, got); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
		wantLen(t, q, size{})
	})
}

func TestConsumerRunsOnce(t *testing.T) {
	q := open(t, nil)
	c, stop := run(q, "n", nil)
	stop()
	if err := c.Run(t.Context(), nil); err == nil {
		t.Error("a second Run = nil, want an error")
	}
}

// TestStress lets consumers come and go while handlers answer at random, and holds
// what the contract says of every delivery.
func TestStress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes, each = 60, 25
		q := open(t, func(c *Config) { c.Concurrency = 7 })
		random := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex // guards random and all below
		undecided := map[string]string{}
		settled := map[string]bool{}
		due := map[string]time.Time{}
		place := map[string]int{}
		behind := map[string]int{} // per lane: the first message that never started or was settled
		handler := func(ctx context.Context, m *queue.Message, started func()) queue.Result {
			tenant := m.Lane.Tenant
			mu.Lock()
			if other := undecided[tenant]; other != "" {
				t.Errorf("%s delivered while %s of the same lane is undecided", m.ID, other)
			}
			if settled[m.ID] {
				t.Errorf("%s delivered after its Ack", m.ID)
			}
			if early := time.Until(due[m.ID]); early > 0 {
				t.Errorf("%s delivered %v too early", m.ID, early)
			}
			if place[m.ID] > behind[tenant] {
				t.Errorf("%s overtook number %d of its lane", m.ID, behind[tenant])
			}
			undecided[tenant] = m.ID
			think, work, dice := random.IntN(3), random.IntN(200), random.IntN(10)
			mu.Unlock()

			wait := func(ms int) {
				select {
				case <-time.After(time.Duration(ms) * time.Millisecond):
				case <-ctx.Done():
				}
			}
			wait(think)
			start := dice < 6 && ctx.Err() == nil
			if start {
				mu.Lock()
				undecided[tenant] = ""
				behind[tenant] = max(behind[tenant], place[m.ID]+1)
				mu.Unlock()
				started()
				wait(work)
			}
			mu.Lock()
			defer mu.Unlock()
			if !start {
				undecided[tenant] = ""
			}
			if dice%2 == 1 || ctx.Err() != nil {
				pause := time.Duration(work) * time.Millisecond
				due[m.ID] = time.Now().Add(max(pause, queue.MinSuspend))
				return queue.Suspend(pause)
			}
			settled[m.ID] = true
			behind[tenant] = max(behind[tenant], place[m.ID]+1)
			return queue.Ack()
		}
		_, stopSteady := run(q, "steady", handler)
		defer stopSteady()
		for i := range lanes * each {
			m := message(fmt.Sprint(i), fmt.Sprint(i%lanes), i%100)
			mu.Lock()
			place[m.ID] = i / lanes
			mu.Unlock()
			publish(t, q, m)
		}
		for i := range 40 {
			c, stop := run(q, "passing", handler)
			time.Sleep(100 * time.Millisecond)
			if i%2 == 0 {
				c.Accept(func(k lane.Key) bool { return len(k.Tenant) > 1 })
				time.Sleep(50 * time.Millisecond)
			}
			stop()
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(settled) != lanes*each {
			t.Errorf("%d messages settled, want %d", len(settled), lanes*each)
		}
		wantLen(t, q, size{})
		if len(q.asleep) != 0 || len(q.consumers) != 1 {
			t.Errorf("%d lanes asleep and %d consumers at the end, want 0 and 1", len(q.asleep), len(q.consumers))
		}
	})
}

// BenchmarkPublishToHandler is the time from Publish to the handler's start.
func BenchmarkPublishToHandler(b *testing.B) {
	q := open(b, nil)
	started := make(chan struct{})
	_, stop := run(q, "n", func(context.Context, *queue.Message, func()) queue.Result {
		started <- struct{}{}
		return queue.Ack()
	})
	defer stop()
	ids := make([]*queue.Message, 1024)
	for i := range ids {
		ids[i] = message(fmt.Sprint(i), fmt.Sprint(i%16), 0)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		publish(b, q, ids[i%len(ids)])
		<-started
	}
}
