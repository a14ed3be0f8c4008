//go:build e2e

package gossip

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fleet is three agents with simulated engines, two gateways, and this process as a
// member that looks on.
type fleet struct {
	agents, gateways []*node
	engines          []*process
	watch            *watcher
}

var (
	theFleet = sync.OnceValues(startFleet)
	every    = 200 * time.Millisecond // between rows
)

// the returns the one fleet of all tests, whole, with every row everywhere.
func the(t *testing.T) *fleet {
	t.Helper()
	f, err := theFleet()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, complaint := range f.watch.complaints() {
			t.Error(complaint)
		}
	})
	f.whole(t, 20*time.Second)
	return f
}

func startFleet() (*fleet, error) {
	f := &fleet{}
	for i := range 3 {
		f.engines = append(f.engines, newProcess(fmt.Sprint("engine", i+1), i+1, "sim", "engine", "--listen", "127.0.0.1:8000"))
		agent, err := newNode(fmt.Sprint("node", i+1), i+1, true, every)
		if err != nil {
			return nil, err
		}
		f.agents = append(f.agents, agent)
	}
	for i := range 2 {
		gateway, err := newNode(fmt.Sprint("gateway", i+4), i+4, false, every)
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, gateway)
	}
	for _, e := range f.engines {
		if err := e.start(); err != nil {
			return nil, err
		}
	}
	for _, n := range f.nodes() {
		if err := n.start(); err != nil {
			return nil, err
		}
	}
	var err error
	f.watch, err = newWatcher()
	return f, err
}

func (f *fleet) nodes() []*node { return append(slices.Clone(f.agents), f.gateways...) }

// whole waits until every node has a row that counts of every agent, and every engine
// is open in its own agent's eyes.
func (f *fleet) whole(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	return eventually(t, within, func() string { return f.missing(f.nodes(), f.agents) })
}

// missing says whose row is not as it should be at whom.
func (f *fleet) missing(at, of []*node) string {
	for _, n := range at {
		all, err := n.views()
		if err != nil {
			return err.Error()
		}
		for _, a := range of {
			if v := all[a.name]; !v.open() {
				return fmt.Sprintf("%s sees %s as %q, %v old", n.name, a.name, v.state, v.age)
			}
		}
	}
	return ""
}

// restart ends all agents and starts them with rows every so often.
func (f *fleet) restart(t *testing.T, rows time.Duration) {
	t.Helper()
	for _, a := range f.agents {
		if err := a.end(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		a.args[slices.Index(a.args, "--gossip-interval")+1] = rows.String()
	}
	for _, a := range f.agents {
		if err := a.start(); err != nil {
			t.Fatal(err)
		}
	}
	f.whole(t, 20*time.Second)
	took := eventually(t, 10*time.Second, func() string { // what gateways remember of the agents' goodbyes must be undone
		for _, n := range f.nodes() {
			if got, err := n.metric("penstock_gossip_members"); err != nil || got != 6 {
				return fmt.Sprintf("%s knows %v members, want 6: %v", n.name, got, err)
			}
		}
		return ""
	})
	t.Logf("all agents restarted at once: all are members of all %v after every row was everywhere", took.Round(time.Millisecond))
}

// heal ends all faults of the network.
func (f *fleet) heal(t *testing.T) {
	t.Helper()
	fault(t, "heal", 1, 2, 3, 4, 5)
}

// quantile of durations, which it sorts.
func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)].Round(time.Millisecond)
}

func told(d []time.Duration) string {
	return fmt.Sprintf("p50 %v, p99 %v, longest %v (%d)", quantile(d, 0.5), quantile(d, 0.99), quantile(d, 1), len(d))
}
