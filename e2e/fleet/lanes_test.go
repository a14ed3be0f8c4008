//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// TestPaced: a lane's pace holds over two agents, and a change of it reaches them
// within a second.
func TestPaced(t *testing.T) {
	the(t)
	slow, fast, span := 1., 3., 10*time.Second // what it may be off by, in starts per second
	if *full {
		slow, span = 0.5, 30*time.Second
	}
	room, d := &engineRoom{model: "paced"}, newFeed(t, "paced", 32)
	var pace atomic.Int64
	pace.Store(10)
	for i := range 2 {
		host(t, hosted{node: fmt.Sprintf("paced%d", i), engine: room.engine(t), pace: func(lane.Key) float64 { return float64(pace.Load()) }})
	}
	// More than can start meanwhile: something waits all the time.
	enough := int((span+4*time.Second).Seconds()*60) + 100
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := w; i < enough; i += 8 {
				if _, err := d.put(t.Context(), "steady", fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	measure := func(want, off float64) {
		t.Helper()
		began := time.Now()
		time.Sleep(time.Until(began.Add(span)))
		got := float64(room.count(began, began.Add(span))) / span.Seconds()
		t.Logf("paced at %g/s: %.2f starts/s over %v", want, got, span)
		if got < want-off || got > want+off {
			t.Errorf("paced at %g/s: %.2f starts/s over %v, want %g to %g", want, got, span, want-off, want+off)
		}
	}
	// change is followed by the second after the first: it is that of the new pace.
	change := func(to int64) {
		t.Helper()
		pace.Store(to)
		changed := time.Now()
		time.Sleep(2 * time.Second)
		got := float64(room.count(changed.Add(time.Second), changed.Add(2*time.Second)))
		t.Logf("changed to %d/s: %g starts in the second after the first", to, got)
		if off := max(2, 0.1*float64(to)); got < float64(to)-off || got > float64(to)+off {
			t.Errorf("changed to %d/s: %g starts in the second after the first, want them within %g", to, got, off)
		}
	}
	time.Sleep(time.Second) // a new pace's first starts may come at once
	measure(10, slow)
	change(50)
	measure(50, fast)
	change(10)
	pace.Store(0)
	t.Logf("all %d ended %v after the pace was taken away", enough, d.settled(t, 2*time.Minute).Round(time.Millisecond))
	if n := len(room.seen()); n != enough {
		t.Errorf("%d starts of %d requests", n, enough)
	}
}

// TestWaited: what waits in a hundred lanes before the first agent starts is all
// delivered, each once, and in order in each shard.
func TestWaited(t *testing.T) {
	the(t)
	lanes, each := 100, 5
	if *full {
		each = 40
	}
	room, d := &engineRoom{model: "waited"}, newFeed(t, "waited", 2)
	var mu sync.Mutex
	want := map[string][]string{} // prompts by lane and shard
	var all sync.WaitGroup
	began := time.Now()
	for w := range 16 {
		all.Go(func() {
			for i := w; i < lanes; i += 16 {
				for n := range each {
					prompt := fmt.Sprintf("%d %d", i, n)
					shard, err := d.put(t.Context(), fmt.Sprintf("waits-%d", i), prompt)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					at := fmt.Sprintf("%d shard %d", i, shard)
					want[at] = append(want[at], prompt)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d requests put into %d lanes, %d shards, in %v", lanes*each, lanes, len(want), time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for i := range 2 {
		name := fmt.Sprintf("late%d", i)
		p := &part{name: name, log: filepath.Join(home, name+".log"), admin: "http://" + addr(71+5*i), args: []string{
			"agent", "--node", name, "--engine", room.engine(t), "--rocketmq", addr(5), "--redis", addr(10),
			"--grpc", addr(70 + 5*i), "--admin", addr(71 + 5*i), "--metrics", addr(72 + 5*i), "--gossip", addr(73 + 5*i),
		}}
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.end(syscall.SIGTERM, 40*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	d.settled(t, 3*time.Minute)
	ended := time.Since(began)
	t.Logf("the first started %v after the agents did, and all had their whole answer after %v",
		room.seen()[0].at.Sub(began).Round(time.Millisecond), ended.Round(time.Millisecond))
	place := map[string]int{}
	for _, s := range room.seen() {
		place[s.prompt] = len(place) + 1
	}
	if n := len(room.seen()); n != lanes*each || len(place) != n {
		t.Errorf("%d starts of %d different requests, want %d", n, len(place), lanes*each)
	}
	for at, prompts := range want {
		for i := 1; i < len(prompts); i++ {
			if place[prompts[i]] < place[prompts[i-1]] {
				t.Errorf("lane %s: %q started before %q", at, prompts[i], prompts[i-1])
			}
		}
	}
}

// TestSuspendedOften: a request given back a hundred times runs then, ahead of what
// waits behind it, and nothing of the group is in a dead letter.
func TestSuspendedOften(t *testing.T) {
	the(t)
	room, d := &engineRoom{model: "suspended"}, newFeed(t, "suspended", 1)
	const times = 100
	var mu sync.Mutex
	deliveries := map[string]int{}
	host(t, hosted{node: "patient", engine: room.engine(t), between: func(inner queue.Handler) queue.Handler {
		return func(ctx context.Context, m *queue.Message, started func()) queue.Result {
			mu.Lock()
			deliveries[m.ID]++
			n := deliveries[m.ID]
			mu.Unlock()
			if n <= times {
				return queue.Suspend(queue.MinSuspend)
			}
			return inner(ctx, m, started)
		}
	}})
	const requests = 8 // each in a lane of its own
	for i := range requests {
		if _, err := d.put(t.Context(), fmt.Sprintf("often-%d", i), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	took := d.settled(t, 2*time.Minute)
	if n := len(room.seen()); n != requests {
		t.Errorf("%d starts of %d requests", n, requests)
	}
	for id, n := range deliveries {
		if n != times+1 {
			t.Errorf("%s was delivered %d times, want %d", id, n, times+1)
		}
	}
	t.Logf("%d requests ran after %d suspends each, in %v", requests, times, took.Round(time.Millisecond))
	topics, err := script("topicList -n 127.0.0.1:"+port(0)+"\n", "scripts/rocketmq/rocketmq.sh", "admin")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(topics, "penstock") || strings.Contains(topics, "%DLQ%") {
		t.Errorf("topics of the broker, want none for dead letters:\n%s", topics)
	}
}
