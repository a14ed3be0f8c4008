//go:build e2e

package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	rows "penstock/fleet"
	"penstock/gossip"
	"penstock/reason"
)

// member is an agent's gossip without the agent, on a host of its own: a hundred whole
// agents are more than the cores of a test machine. Its rows are heard and kept.
type member struct {
	name   string
	gossip *gossip.Gossip

	mu    sync.Mutex // guards table
	table *rows.Table
}

func (m *member) take(msg []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.table.Receive(time.Now(), msg)
}

// MarshalBinary and Merge: a member tells nothing of others.
func (m *member) MarshalBinary() ([]byte, error) { return nil, nil }

func (m *member) Merge([]byte) error { return nil }

func newMember(name, keys string) (*member, error) {
	m := &member{name: name, table: rows.NewTable(rows.ID(name), uint64(time.Now().UnixMilli()))}
	cfg := gossip.DefaultConfig()
	cfg.Name, cfg.Label, cfg.KeyFile, cfg.Join = name, "penstock", keys, []string{address(1) + ":4783"}
	var err error
	m.gossip, err = gossip.New(cfg, m, m.take, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return m, err
}

// run sends a row every 200 ms until ctx ends.
func (m *member) run(ctx context.Context, l *gossip.Listener) error {
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		for tick := time.NewTicker(every); ; {
			now := time.Now()
			m.mu.Lock()
			row := m.table.Own(now, rows.Row{Node: m.name, Models: rows.Models("sim"), State: reason.OK, At: now})
			m.mu.Unlock()
			_ = m.gossip.Send(rows.AppendRow(nil, &row, now))
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	return m.gossip.Run(ctx, l)
}

// TestRealHundredHosts: beside the fleet's three agents the gossip of 97 more, a host
// each: rows come to the agents and gateways, and to the others, in time. The full form's.
func TestRealHundredHosts(t *testing.T) {
	if !*full {
		t.Skip("the full form's: a hundred hosts")
	}
	f := the(t)
	names := []string{f.agents[0].name, f.agents[1].name, f.agents[2].name}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var last *member
	began := time.Now()
	for i := range 100 - len(names) {
		m, err := newMember(fmt.Sprint("more", i), f.agents[0].keys)
		if err != nil {
			t.Fatal(err)
		}
		var l *gossip.Listener
		if err := inside(more+i, func() (err error) { l, err = gossip.Listen(address(more+i) + ":4783"); return err }); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := m.run(ctx, l); err != nil {
				t.Error(err)
			}
		})
		names, last = append(names, m.name), m
		// One after the other: what is 100 hosts' work has a core or two here.
		eventually(t, 10*time.Second, func() string {
			if got := len(f.watch.gossip.Members()); got != 6+i+1 {
				return fmt.Sprintf("%d members with %s", got, m.name)
			}
			return ""
		})
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
	var ages []time.Duration
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
		last.mu.Lock()
		now := time.Now()
		for _, r := range last.table.Rows(now) {
			ages = append(ages, now.Sub(r.At))
		}
		last.mu.Unlock()
	}
	core := 100 * float64(cpu()-before) / float64(time.Since(from)) / float64(len(f.agents))
	_, rss, err := f.agents[0].usage()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("100 engines on 100 hosts, rows every 200 ms: all rows at agents and gateway %v after the first start; age of a row %s; an agent takes %.1f %% of a core and %d MiB",
		joined.Round(100*time.Millisecond), told(ages), core, rss>>20)
	if p99 := quantile(ages, 0.99); p99 > rows.StaleAfter {
		t.Errorf("p99 of the age of a row is %v; at most %v", p99, rows.StaleAfter)
	}
}
