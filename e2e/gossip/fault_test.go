//go:build e2e

package gossip

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rows "penstock/fleet"
	"penstock/reason"
)

// healed is how long after the end of a fault the view may take to be right.
const healed = 2 * time.Second

// TestRealPartition: hosts 1 and 4 cannot reach 2, 3, 5 and this process. Both sides go on, rows of
// the other side stop to count and come back. The full form also waits until the other
// side's members are gone, and its rows forgotten.
func TestRealPartition(t *testing.T) {
	f := the(t)
	side := [][]*node{{f.agents[0], f.gateways[0]}, {f.agents[1], f.agents[2], f.gateways[1]}}
	for _, lasts := range long([]time.Duration{3 * time.Second}, []time.Duration{3 * time.Second, 20 * time.Second, 90 * time.Second}) {
		for i, here := range side {
			for _, n := range here {
				args := []any{"block", n.host}
				for _, other := range side[1-i] {
					args = append(args, other.host)
				}
				if i == 0 {
					args = append(args, 254)
				}
				fault(t, args...)
			}
		}
		began := time.Now()
		eventually(t, 3*time.Second, func() string {
			for i, here := range side {
				if missing := f.missing(here, agents(here)); missing != "" {
					return missing
				}
				for _, n := range here {
					all, err := n.views()
					if err != nil {
						return err.Error()
					}
					for _, other := range agents(side[1-i]) {
						if v := all[other.name]; v.counts() {
							return fmt.Sprintf("%s still counts on %s", n.name, other.name)
						}
					}
				}
			}
			return ""
		})
		for time.Since(began) < lasts {
			for _, here := range side {
				if missing := f.missing(here, agents(here)); missing != "" {
					t.Fatalf("%v into the partition: %s", time.Since(began), missing)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		members := len(f.watch.gossip.Members())
		f.heal(t)
		t.Logf("a partition of %v: the view is right %v after its end (the looker-on saw %d of 6 members)", lasts, f.whole(t, healed), members)
	}
}

func agents(nodes []*node) (of []*node) {
	for _, n := range nodes {
		if n.agent {
			of = append(of, n)
		}
	}
	return of
}

// TestRealDead: no packet of gossip gets through at all. Every engine is open in its own
// agent's eyes, and nobody counts on anybody else.
func TestRealDead(t *testing.T) {
	f := the(t)
	for _, n := range f.nodes() {
		fault(t, "block", n.host, 1, 2, 3, 4, 5, 254)
	}
	began := time.Now()
	time.Sleep(1500 * time.Millisecond)
	for time.Since(began) < long(3*time.Second, 30*time.Second) {
		for _, n := range f.nodes() {
			all, err := n.views()
			if err != nil {
				t.Fatal(err)
			}
			for name, v := range all {
				if v.counts() != (name == n.name) {
					t.Fatalf("%s sees %s as %q, %v old, while gossip is dead", n.name, name, v.state, v.age)
				}
			}
			if n.agent && !all[n.name].open() {
				t.Fatalf("%s closes its engine since gossip is dead: %+v", n.name, all[n.name])
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	f.heal(t)
	t.Logf("gossip dead for %v: the view is right %v after its end", time.Since(began).Round(time.Second), f.whole(t, healed))
}

// TestRealKeys: the key is replaced in the three steps that docs/fleet.md names, with no
// row missed; then one agent has another fleet's key.
func TestRealKeys(t *testing.T) {
	f := the(t)
	for _, keys := range [][]string{{first, second}, {second, first}, {second}} {
		for _, n := range f.nodes() {
			if err := n.setKeys(keys...); err != nil {
				t.Fatal(err)
			}
			if missing := f.missing(f.nodes(), f.agents); missing != "" {
				t.Fatalf("keys %d: %s", len(keys), missing)
			}
		}
		if err := f.watch.setKeys(keys...); err != nil {
			t.Fatal(err)
		}
		for range long(5, 30) {
			time.Sleep(100 * time.Millisecond)
			if missing := f.missing(f.nodes(), f.agents); missing != "" {
				t.Fatalf("keys %d: %s", len(keys), missing)
			}
		}
	}
	odd := f.agents[1]
	rest := []*node{f.agents[0], f.agents[2], f.gateways[0], f.gateways[1]}
	for _, lasts := range long([]time.Duration{3 * time.Second}, []time.Duration{3 * time.Second, 40 * time.Second}) {
		if err := odd.setKeys(alien); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		for began := time.Now(); time.Since(began) < lasts; time.Sleep(100 * time.Millisecond) {
			all, err := odd.views()
			if err != nil {
				t.Fatal(err)
			}
			for name, v := range all {
				if v.counts() != (name == odd.name) || name == odd.name && !v.open() {
					t.Fatalf("with another key %s sees %s as %+v", odd.name, name, v)
				}
			}
			if missing := f.missing(rest, agents(rest)); missing != "" {
				t.Fatal(missing)
			}
		}
		if err := odd.setKeys(second); err != nil {
			t.Fatal(err)
		}
		t.Logf("another key for %v: the view is right %v after it was put right", lasts, f.whole(t, healed))
	}
	for _, keys := range [][]string{{second, first}, {first, second}, {first}} {
		for _, n := range f.nodes() {
			if err := n.setKeys(keys...); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.watch.setKeys(keys...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
}

// TestRealLies: garbage at the ports, and rows about node1 that node1 did not write,
// from a member that has the key.
func TestRealLies(t *testing.T) {
	f := the(t)
	stop := make(chan struct{})
	var sent int
	var flood sync.WaitGroup
	flood.Go(func() { sent = garbage(f.nodes(), stop) })
	lasts := long(3*time.Second, 30*time.Second)
	for began := time.Now(); time.Since(began) < lasts; time.Sleep(50 * time.Millisecond) {
		if missing := f.missing(f.nodes(), f.agents); missing != "" {
			t.Errorf("under garbage: %s", missing)
			break
		}
	}
	close(stop)
	flood.Wait()
	t.Logf("%.0f packets and streams of garbage a second: every row counted all the time", float64(sent)/lasts.Seconds())

	victim := f.agents[0]
	seen := func() string {
		for _, n := range f.nodes() {
			all, err := n.views()
			if err != nil {
				return err.Error()
			}
			if v := all[victim.name]; v.kv > 0.9 || !v.open() {
				return fmt.Sprintf("%s believes of %s: %+v", n.name, victim.name, v)
			}
		}
		return ""
	}
	lie := func(change func(*rows.Row)) []byte {
		row, now := f.watch.row(victim.name), time.Now()
		row.State, row.KV, row.At = reason.Stuck, 0.99, now
		change(&row)
		return rows.AppendRow(nil, &row, now)
	}
	older := lie(func(r *rows.Row) { r.Seq-- })
	f.watch.mu.Lock()
	f.watch.lie = append([]byte{rows.KindTable, 1, byte(len(older))}, older...)
	f.watch.mu.Unlock()
	for began := time.Now(); time.Since(began) < long(2*time.Second, 15*time.Second); time.Sleep(10 * time.Millisecond) {
		if err := f.watch.gossip.Send(lie(func(r *rows.Row) { r.Seq -= 3 })); err != nil {
			t.Fatal(err)
		}
		if believed := seen(); believed != "" {
			t.Fatalf("a guess of an older version: %s", believed)
		}
	}
	f.watch.mu.Lock()
	f.watch.lie = nil
	f.watch.mu.Unlock()
	for range long(3, 20) {
		if err := f.watch.gossip.Send(lie(func(r *rows.Row) { r.Incarnation += 1000 })); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Millisecond)
		eventually(t, healed, seen)
	}
	t.Log("guesses of older versions were never taken; what claimed to be newer than the owner's was undone by its next row")
}

// garbage sends packets and streams that make no sense until stop is closed.
func garbage(to []*node, stop chan struct{}) (sent int) {
	label := append([]byte{244, byte(len("penstock"))}, "penstock"...)
	noise := make([]byte, 1500)
	_, _ = rand.Read(noise)
	var conns []net.Conn
	for _, n := range to {
		port := ":4786"
		if n.agent {
			port = ":4783"
		}
		c, err := net.Dial("udp", address(n.host)+port)
		if err != nil {
			continue
		}
		defer func() { _ = c.Close() }()
		conns = append(conns, c)
	}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return sent
		case <-time.After(time.Millisecond):
		}
		for _, c := range conns {
			size := 1 + (i*37)%1400
			for _, packet := range [][]byte{noise[:size], append(label[:len(label):len(label)], noise[:size]...)} {
				if _, err := c.Write(packet); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
					sent++
				}
			}
			if i%50 == 0 {
				if s, err := net.DialTimeout("tcp", strings.Clone(c.RemoteAddr().String()), time.Second); err == nil {
					_, _ = s.Write(noise)
					_ = s.Close()
					sent++
				}
			}
		}
	}
}
