package neighbours

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"penstock/fleet"
	"penstock/reason"
)

// member runs neighbours until the test ends. It returns how many aborts of "gone"
// arrived.
func member(t *testing.T, name, keys string, agent bool, join ...string) (*Neighbours, *atomic.Int32) {
	t.Helper()
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	Flags(f, "127.0.0.1:0")
	args := []string{"--gossip-interval", "50ms"}
	for _, address := range join {
		args = append(args, "--join", address)
	}
	if keys != "" {
		args = append(args, "--gossip-key-file", keys)
	}
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	opts, err := Read(f, name)
	if err != nil {
		t.Fatal(err)
	}
	opts.Gossip.JoinEvery, opts.Gossip.SyncEvery = 200*time.Millisecond, 500*time.Millisecond
	var own func(time.Time) fleet.Row
	if agent {
		own = func(now time.Time) fleet.Row {
			return fleet.Row{Node: name, Models: fleet.Models("m"), State: reason.OK, Freeness: 1000, DrainRate: 10, At: now}
		}
	}
	gone := new(atomic.Int32)
	n, err := New(opts, own, func(id, _ string) {
		if id == "gone" {
			gone.Add(1)
		}
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.Run(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return n, gone
}

func within(t *testing.T, d time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// TestNeighbours: rows of agents reach agents and gateways, an abort of a gateway
// reaches every agent once, also one that joins later; who has another key is alone.
func TestNeighbours(t *testing.T) {
	keys, other := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "other")
	for path, key := range map[string]string{keys: "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", other: "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="} {
		if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, goneA := member(t, "a", keys, true)
	seed := a.listen.Addr().String()
	b, goneB := member(t, "b", keys, true, seed)
	g, _ := member(t, "g", keys, false, seed)
	foreign, _ := member(t, "x", other, true, seed)
	for _, n := range []*Neighbours{a, b, g} {
		within(t, 10*time.Second, "two fresh rows at "+n.opts.Gossip.Name, func() bool {
			engines, rate, _ := fleet.Drain(n.Rows(), "m", time.Now())
			return engines == 2 && rate == 20
		})
	}
	g.Abort("gone")
	within(t, 5*time.Second, "the abort at both agents", func() bool { return goneA.Load() == 1 && goneB.Load() == 1 })
	late, goneLate := member(t, "late", keys, true, seed)
	within(t, 10*time.Second, "the abort at an agent that joins later", func() bool { return goneLate.Load() == 1 })
	within(t, 10*time.Second, "three rows", func() bool { return len(late.Rows()) == 3 })
	if rows := foreign.Rows(); len(rows) != 1 {
		t.Errorf("a member with another key sees %d rows, want its own alone", len(rows))
	}
	if a, b := goneA.Load(), goneB.Load(); a != 1 || b != 1 {
		t.Errorf("the abort was delivered %d and %d times, want once each", a, b)
	}
}

// TestTooManyNeighbours: one loud line, and not for engines that are gone.
func TestTooManyNeighbours(t *testing.T) {
	n, _ := member(t, "a", "", false)
	said := new(strings.Builder)
	n.log = slog.New(slog.NewTextHandler(said, nil))
	hear := func(engine int, age time.Duration) {
		now := time.Now()
		row := fleet.NewTable(uint64(engine), 1).Own(now, fleet.Row{State: reason.OK, At: now.Add(-age)})
		if err := n.take(now, fleet.AppendRow(nil, &row, now)); err != nil {
			t.Fatal(err)
		}
	}
	look := func() int {
		n.seen.Store(nil)
		n.Rows()
		return strings.Count(said.String(), "level=ERROR")
	}
	for i := range mostEngines {
		hear(i+1, 0)
		hear(1000+i, 10*time.Second)
	}
	if lines := look(); lines != 0 {
		t.Errorf("%d engines, as many gone: %q", mostEngines, said)
	}
	hear(999, 0)
	look()
	if lines := look(); lines != 1 || !strings.Contains(said.String(), "engines=101") {
		t.Errorf("one engine more, looked at twice: %q, want one line", said)
	}
}

func TestNoGossip(t *testing.T) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	Flags(f, "127.0.0.1:4783")
	if err := f.Parse([]string{"--gossip", ""}); err != nil {
		t.Fatal(err)
	}
	opts, err := Read(f, "a")
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(opts, nil, nil, nil, nil)
	if n != nil || err != nil {
		t.Fatalf("newNeighbours without an address: %v, %v", n, err)
	}
	n.Abort("id")
	if rows := n.Rows(); rows != nil {
		t.Errorf("rows without gossip: %v", rows)
	}
	if err := f.Parse([]string{"--join", "b:4783"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(f, "a"); err == nil || !strings.Contains(err.Error(), "--gossip") {
		t.Errorf("--join without --gossip: %v, want an error that names --gossip", err)
	}
}

// FuzzNeighboursMerge: whatever another member says is taken or refused.
func FuzzNeighboursMerge(f *testing.F) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Flags(flags, "127.0.0.1:0")
	opts, err := Read(flags, "a")
	if err != nil {
		f.Fatal(err)
	}
	n, err := New(opts, func(now time.Time) fleet.Row { return fleet.Row{At: now} }, func(string, string) {}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(n.Close)
	n.table.Own(time.Now(), fleet.Row{Node: "a", At: time.Now()})
	n.Abort("id")
	state, err := n.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	if err := n.Merge(state); err != nil {
		f.Fatalf("its own state: %v", err)
	}
	f.Add(state)
	f.Add(state[:len(state)-1])
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, b []byte) { _ = n.Merge(b) })
}
