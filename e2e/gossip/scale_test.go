//go:build e2e

package gossip

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	rows "penstock/fleet"
)

// TestRealHundredHosts: 100 agents on a host each. Those beyond the fleet's three have no
// engine, and say so. The full form's.
func TestRealHundredHosts(t *testing.T) {
	if !*full {
		t.Skip("the full form's: 100 processes")
	}
	f := the(t)
	names := []string{f.agents[0].name, f.agents[1].name, f.agents[2].name}
	began := time.Now()
	for i := range 100 - len(names) {
		n, err := newNode(fmt.Sprint("more", i), more+i, true, every)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.end(syscall.SIGTERM, 20*time.Second); err != nil {
				t.Error(err)
			}
		}()
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
		names = append(names, n.name)
	}
	at := []*node{f.agents[0], f.agents[2], f.gateways[0]}
	stale := func() string {
		for _, n := range at {
			all, err := n.views()
			if err != nil {
				return err.Error()
			}
			for _, name := range names {
				if !all[name].counts() {
					return fmt.Sprintf("%s sees %s as %+v", n.name, name, all[name])
				}
			}
		}
		return ""
	}
	eventually(t, 60*time.Second, stale)
	joined := time.Since(began)
	time.Sleep(9 * time.Second) // the first exchanges of state are over then
	var ages []time.Duration
	cpu := func() (sum time.Duration) {
		for _, n := range f.agents {
			used, _, err := n.usage()
			if err != nil {
				t.Fatal(err)
			}
			sum += used
		}
		return sum
	}
	from, before := time.Now(), cpu()
	for time.Since(from) < 15*time.Second {
		time.Sleep(300 * time.Millisecond)
		for _, n := range at {
			all, err := n.views()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if v := all[name]; !v.local {
					ages = append(ages, v.age)
				}
			}
		}
	}
	core := 100 * float64(cpu()-before) / float64(time.Since(from)) / float64(len(f.agents))
	_, rss, err := f.agents[0].usage()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("100 agents on 100 hosts, rows every 200 ms: all rows at three nodes %v after the first start; age of a row %s; an agent with an engine takes %.1f %% of a core and %d MiB",
		joined.Round(100*time.Millisecond), told(ages), core, rss>>20)
	if p99 := quantile(ages, 0.99); p99 > rows.StaleAfter {
		t.Errorf("p99 of the age of a row is %v; at most %v", p99, rows.StaleAfter)
	}
}
