//go:build e2e

package gossip

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// TestRealRejoin: an agent is killed and started again and again; each time all others
// have the new process's row soon. Then the node comes back on another host.
func TestRealRejoin(t *testing.T) {
	f := the(t)
	victim := f.agents[1]
	var took []time.Duration
	for range long(6, 100) {
		before := f.watch.row(victim.name).Incarnation
		if err := victim.end(syscall.SIGKILL, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := victim.start(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually(t, 10*time.Second, func() string {
			if r := f.watch.row(victim.name); r.Incarnation <= before {
				return fmt.Sprintf("no row of %s's new process", victim.name)
			}
			return f.missing(f.nodes(), f.agents)
		})
		took = append(took, time.Since(began))
	}
	t.Logf("killed with -9 and started %d times, until every node counts on it and it on all others: %s", len(took), told(took))

	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		moved, err := newNode(victim.name, spare, true, every)
		if err != nil {
			t.Fatal(err)
		}
		engine := newProcess("engine-spare", spare, "sim", "engine", "--listen", "127.0.0.1:8000")
		if err := victim.end(s, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*process{engine, &moved.process} {
			if err := p.start(); err != nil {
				t.Fatal(err)
			}
		}
		began, before := time.Now(), f.watch.row(victim.name).Incarnation
		nodes := []*node{f.agents[0], moved, f.agents[2], f.gateways[0], f.gateways[1]}
		known := eventually(t, 10*time.Second, func() string {
			if f.watch.row(victim.name).Incarnation == before {
				return "no row of the new process"
			}
			return f.missing(nodes[:1], agents(nodes))
		})
		member := eventually(t, 60*time.Second, func() string {
			for _, m := range f.watch.gossip.Members() {
				if m.Name == victim.name && m.Addr == address(spare)+":4783" {
					return f.missing(nodes, agents(nodes))
				}
			}
			return fmt.Sprintf("%s is no member at its new address: %v", victim.name, f.watch.gossip.Members())
		})
		t.Logf("back at another address after %v: its rows count after %v, it is a member and all see all after %v (from its start %v)", s, known, member, time.Since(began).Round(10*time.Millisecond))
		for _, p := range []*process{&moved.process, engine} {
			if err := p.end(syscall.SIGTERM, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if err := victim.start(); err != nil {
			t.Fatal(err)
		}
		f.whole(t, 60*time.Second)
		if !*full {
			return // after a kill the old address has to count as gone first, which takes 4 to 24 s
		}
	}
}
