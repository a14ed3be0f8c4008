//go:build e2e

package gossip

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestRealRows: what an engine's agent notes is known to all other agents and both
// gateways soon. Each sample is one drain, or its end, at one other node: from when the
// agent obeyed until the node shows it.
func TestRealRows(t *testing.T) {
	f := the(t)
	for _, c := range []struct {
		every, p99 time.Duration
		changes    int // one that the machine held up is 1 % of 100
	}{{50 * time.Millisecond, 250 * time.Millisecond, long(110, 400)}, {200 * time.Millisecond, time.Second, long(30, 400)}} {
		f.restart(t, c.every)
		var took []time.Duration
		for i := range c.changes {
			took = append(took, f.change(t, f.agents[i/2%3], i%2 == 0)...)
		}
		t.Logf("rows every %v, until another node shows a change: %s", c.every, told(took))
		if p99 := quantile(took, 0.99); p99 > c.p99 {
			t.Errorf("rows every %v: p99 %v; at most %v", c.every, p99, c.p99)
		}
	}
}

// change drains an engine or ends that, and says how long each other node took to know.
func (f *fleet) change(t *testing.T, owner *node, drain bool) []time.Duration {
	t.Helper()
	want := map[bool]string{true: "draining", false: "ok"}[drain]
	asked := time.Now()
	if err := owner.order(drain); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if order := began.Sub(asked); order > 200*time.Millisecond {
		t.Logf("%s took %v to obey", owner.name, order.Round(time.Millisecond))
	}
	var (
		all  sync.WaitGroup
		mu   sync.Mutex // guards the two below
		took []time.Duration
		bad  string
	)
	for _, n := range f.nodes() {
		if n == owner {
			continue
		}
		all.Go(func() {
			for {
				views, err := n.views()
				now := time.Since(began)
				mu.Lock()
				switch {
				case err == nil && views[owner.name].state == want:
					took = append(took, now)
				case now > 10*time.Second:
					bad = fmt.Sprintf("%s sees %s as %+v 10 s after it was %s: %v", n.name, owner.name, views[owner.name], want, err)
				default:
					mu.Unlock()
					time.Sleep(5 * time.Millisecond)
					continue
				}
				mu.Unlock()
				return
			}
		})
	}
	if all.Wait(); bad != "" {
		t.Fatal(bad)
	}
	return took
}

// TestRealAborts: 15 more agents join, so that there are 20 nodes and who sends. Each
// loses 5 % of what arrives, and every abort reaches each of them.
func TestRealAborts(t *testing.T) {
	f := the(t)
	nodes := f.nodes()
	for i := range 15 {
		n, err := newNode(fmt.Sprint("more", i), more+i, true, every)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.end(syscall.SIGTERM, 10*time.Second); err != nil {
				t.Error(err)
			}
		}()
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	eventually(t, 20*time.Second, func() string {
		if n := len(f.watch.gossip.Members()); n != 21 {
			return fmt.Sprintf("%d members, want 21", n)
		}
		return ""
	})
	for _, n := range nodes {
		fault(t, "loss", n.host, 5)
	}
	defer fault(t, "heal", 1, 2, 3, 4, 5)
	delivered := func(n *node) float64 {
		v, err := n.metric("penstock_gossip_aborts_total", `outcome="delivered"`)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	before := make([]float64, len(nodes))
	for i, n := range nodes {
		before[i] = delivered(n)
	}
	var took []time.Duration
	aborts := long(20, 500)
	for k := range aborts {
		began := time.Now()
		if err := f.watch.abort(fmt.Sprintf("%032d", k)); err != nil {
			t.Fatal(err)
		}
		for i, n := range nodes {
			for delivered(n) <= before[i]+float64(k) {
				if time.Since(began) > 10*time.Second {
					t.Fatalf("abort %d did not reach %s within 10 s", k, n.name)
				}
				time.Sleep(5 * time.Millisecond)
			}
			took = append(took, time.Since(began))
		}
	}
	t.Logf("%d aborts by gossip alone to 20 nodes that lose 5 %%: all arrived; %s, the reading of 20 pages of metrics included", aborts, told(took))
	if p99 := quantile(took, 0.99); p99 > time.Second {
		t.Errorf("aborts: p99 %v; at most 1 s", p99)
	}
}
