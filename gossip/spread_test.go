package gossip

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// lossy loses each packet with probability p, the same ones for the same seed and
// order of sending.
func lossy(p float64, seed uint64) func(*node) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(n *node) {
		n.lose = func(netip.AddrPort) bool {
			mu.Lock()
			defer mu.Unlock()
			return rng.Float64() < p
		}
	}
}

// spreadTimes broadcasts count messages, one every 20 ms, each from the next node,
// and returns per message how long the last node waited for it, sorted. Each must
// come to each other node, and once.
func spreadTimes(t testing.TB, all []*node, count int) []time.Duration {
	t.Helper()
	type delivery struct{ node, msg int }
	var (
		sent = make([]time.Time, count)
		last = make([]time.Duration, count)
		came = map[delivery]int{}
		mu   sync.Mutex
		wg   sync.WaitGroup
		stop = make(chan struct{})
	)
	for node, n := range all {
		wg.Go(func() {
			for {
				select {
				case text := <-n.got:
					msg, _ := strconv.Atoi(strings.TrimSpace(text))
					mu.Lock()
					came[delivery{node, msg}]++
					last[msg] = max(last[msg], time.Since(sent[msg]))
					mu.Unlock()
				case <-stop:
					return
				}
			}
		})
	}
	for i := range count {
		mu.Lock()
		sent[i] = time.Now()
		mu.Unlock()
		if err := all[i%len(all)].Broadcast(fmt.Appendf(nil, "%-100d", i)); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
	eventually(t, "the queues are empty", func() bool {
		return !slices.ContainsFunc(all, func(n *node) bool { return n.queue.NumQueued()+len(n.received)+len(n.got) > 0 })
	})
	close(stop)
	wg.Wait()
	missed := 0
	for i := range count {
		for node := range all {
			switch c := came[delivery{node, i}]; {
			case node == i%len(all) && c > 0:
				t.Errorf("broadcast %d came back to its origin", i)
			case c > 1:
				t.Errorf("broadcast %d came %d times to one node", i, c)
			case node != i%len(all) && c == 0:
				missed++
			}
		}
	}
	if missed > 0 {
		t.Errorf("%d of %d deliveries never came", missed, count*(len(all)-1))
	}
	slices.Sort(last)
	return last
}

func TestSpreadUnderLoss(t *testing.T) {
	usual := func(name string, join ...string) Config {
		c := DefaultConfig()
		c.Name, c.Label, c.Join, c.LeaveTimeout = name, "test", join, 0
		return c
	}
	all := fleet(t, 20, usual, lossy(0.05, 1))
	took := spreadTimes(t, all, 60)
	p99 := took[len(took)*99/100]
	t.Logf("20 nodes, 5 %% loss, %d broadcasts: all have one after p50 %v, p99 %v, at most %v", len(took), took[len(took)/2], p99, took[len(took)-1])
	if p99 > time.Second {
		t.Errorf("p99 %v, want at most 1s", p99)
	}
}
