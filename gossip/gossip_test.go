package gossip

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestRestarts(t *testing.T) {
	t.Parallel()
	stay := start(t, quick("stay"))
	for i := range 20 {
		n := start(t, quick("comes and goes", stay.addr))
		eventually(t, fmt.Sprintf("start %d is seen", i), func() bool {
			return slices.ContainsFunc(stay.Members(), func(m Member) bool { return m.Addr == n.addr })
		})
		n.stop()
		eventually(t, fmt.Sprintf("end %d is seen", i), func() bool { return len(stay.Members()) == 1 })
	}
}

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	withMeta := func(name string, join ...string) Config {
		c := quick(name, join...)
		c.Meta = []byte("meta of " + name)
		return c
	}
	all := fleet(t, 3, withMeta)
	var want []Member
	for i, n := range all {
		want = append(want, Member{fmt.Sprintf("n%d", i), n.addr, []byte(fmt.Sprintf("meta of n%d", i))})
	}
	for _, n := range all {
		if diff := cmp.Diff(want, n.Members()); diff != "" {
			t.Errorf("members of %s (-want +got):\n%s", n.cfg.Name, diff)
		}
		eventually(t, "the states are one", func() bool { return n.state.has("n0") && (n != all[0] || n.state.has("n1", "n2")) })
	}
	if got := all[1].metric(t, "members", ""); got != 3 {
		t.Errorf("members gauge = %v, want 3", got)
	}

	begin := time.Now()
	all[2].stop()
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("leaving took %v", took)
	}
	eventually(t, "the others know that n2 left", func() bool { return converged(all[:2], 2) })
	if got := len(all[2].Members()); got != 0 {
		t.Errorf("%d members after Run ended, want none", got)
	}

	// One that left comes back from another address at once.
	again := start(t, quick("n2", all[0].addr))
	eventually(t, "n2 is back", func() bool {
		return slices.ContainsFunc(all[1].Members(), func(m Member) bool { return m.Name == "n2" && m.Addr == again.addr })
	})
}

func TestClusterOfOne(t *testing.T) {
	t.Parallel()
	alone := start(t, quick("alone"))
	eventually(t, "it is a member", func() bool { return len(alone.Members()) == 1 })
	if err := alone.Broadcast([]byte("anybody?")); err != nil {
		t.Error(err)
	}
	if got := alone.queue.NumQueued(); got != 0 {
		t.Errorf("%d broadcasts wait for nobody, want none", got)
	}
	if got := alone.metric(t, "isolated", ""); got != 0 {
		t.Error("isolated although there are no seeds")
	}

	lost := start(t, quick("lost", "127.0.0.1:1"))
	eventually(t, "it is isolated", func() bool { return lost.metric(t, "isolated", "") == 1 })
	eventually(t, "and says so", func() bool { return strings.Contains(lost.out.String(), "isolated") })
	if lost.metric(t, "joins_total", "failed") < 1 {
		t.Error("no failed join counted")
	}
}

func TestSendReachesAll(t *testing.T) {
	t.Parallel()
	all := fleet(t, 4, quick)
	biggest := strings.Repeat("x", MaxMessage)
	for _, msg := range []string{"a", biggest} {
		buf := []byte(msg)
		if err := all[0].Send(buf); err != nil {
			t.Fatal(err)
		}
		clear(buf) // it was copied
		for _, n := range all[1:] {
			if got := n.next(t); got != msg {
				t.Errorf("%s received %d bytes %.10q, want %d bytes %.10q", n.cfg.Name, len(got), got, len(msg), msg)
			}
		}
	}
	if len(all[0].got) > 0 {
		t.Error("the sender received its own message")
	}
}

func TestAllAddresses(t *testing.T) {
	t.Parallel()
	for _, bind := range []string{":0", "0.0.0.0:0"} {
		t.Run(bind, func(t *testing.T) {
			cfg := quick("everywhere")
			cfg.Advertise = "127.0.0.1"
			everywhere := start(t, cfg, func(n *node) { n.bind = bind })
			here := start(t, quick("here", "127.0.0.1"+everywhere.addr[strings.LastIndex(everywhere.addr, ":"):]))
			all := []*node{everywhere, here}
			eventually(t, "both know both", func() bool { return converged(all, 2) })
			for i, n := range all {
				if err := n.Send([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				if got := all[1-i].next(t); got != "hello" {
					t.Errorf("received %q", got)
				}
			}
		})
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	n := start(t, quick("n0"))
	for _, tc := range []struct {
		size int
		ok   bool
	}{{0, false}, {1, true}, {MaxMessage, true}, {MaxMessage + 1, false}} {
		for name, send := range map[string]func([]byte) error{"Send": n.Send, "Broadcast": n.Broadcast} {
			if err := send(make([]byte, tc.size)); (err == nil) != tc.ok {
				t.Errorf("%s of %d bytes: %v, want ok %v", name, tc.size, err, tc.ok)
			}
		}
	}
	if got := n.metric(t, "dropped_total", "size"); got != 4 {
		t.Errorf("%v dropped for their size, want 4", got)
	}
}

func TestQueueBounds(t *testing.T) {
	t.Parallel()
	t.Run("broadcasts", func(t *testing.T) {
		slow := func(name string, join ...string) Config {
			c := quick(name, join...)
			c.GossipEvery, c.Queue = time.Second, 16
			return c
		}
		all := fleet(t, 2, slow)
		for i := range 500 { // some leave with probes meanwhile
			if err := all[0].Broadcast(append(make([]byte, 1000), byte(i))); err != nil {
				t.Fatal(err)
			}
		}
		if got := all[0].queue.NumQueued(); got > 16 {
			t.Errorf("%d broadcasts wait, want at most 16", got)
		}
		if got := all[0].metric(t, "dropped_total", "broadcast_queue"); got < 400 {
			t.Errorf("%v of 500 broadcasts dropped, want most", got)
		}
	})
	t.Run("sends", func(t *testing.T) {
		g := newIdle(t, nil)
		for range sendQueue + 5 {
			if err := g.Send([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.metric(t, "dropped_total", "send_queue"); got != 5 {
			t.Errorf("%v sends dropped, want 5", got)
		}
	})
	t.Run("received", func(t *testing.T) {
		g := newIdle(t, nil)
		msg := []byte("\x01hello")
		for range g.cfg.Queue + 5 {
			(&delegate{g.Gossip}).NotifyMsg(msg)
		}
		clear(msg) // memberlist's: it was copied
		if got := g.metric(t, "dropped_total", "receive_queue"); got != 5 {
			t.Errorf("%v received messages dropped, want 5", got)
		}
		if got := string(<-g.received); got != "\x01hello" {
			t.Errorf("the queue holds %q", got)
		}
	})
}

// newIdle makes a node that does not run.
func newIdle(t *testing.T, state *words) *node {
	t.Helper()
	n := &node{state: state, reg: prometheus.NewRegistry(), out: &buffer{}}
	var err error
	n.Gossip, err = New(quick("idle"), state, func([]byte) {}, slog.New(slog.NewTextHandler(n.out, nil)), n.reg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStateBounds(t *testing.T) {
	t.Parallel()
	state := &words{set: map[string]bool{"a": true}}
	n := newIdle(t, state)
	d := &delegate{n.Gossip}
	if got := string(d.LocalState(false)); got != "a" {
		t.Errorf("LocalState = %q, want a", got)
	}
	d.MergeRemoteState(make([]byte, n.cfg.MaxState+1), false)
	state.refuse = errRefused
	d.MergeRemoteState([]byte("b"), false)
	if d.LocalState(true) != nil {
		t.Error("a state that cannot be marshalled was sent")
	}
	state.refuse = nil
	state.set[strings.Repeat("x", n.cfg.MaxState+1)] = true
	if d.LocalState(true) != nil {
		t.Error("a state above the limit was sent")
	}
	if got := n.metric(t, "dropped_total", "state"); got != 4 {
		t.Errorf("%v states dropped, want 4", got)
	}
	if got := strings.Count(n.out.String(), "\n"); got != 2 {
		t.Errorf("%d lines logged, want one per kind:\n%s", got, n.out)
	}
}

func TestNewAddressOfAFailedName(t *testing.T) {
	t.Parallel()
	withSync := func(name string, join ...string) Config {
		c := quick(name, join...)
		c.SyncEvery = 200 * time.Millisecond
		c.LeaveTimeout = 0 // dies without a goodbye
		return c
	}
	all := fleet(t, 3, withSync)
	all[2].stop()
	again := start(t, withSync("n2", all[0].addr))
	has := func(n *node) bool {
		return slices.ContainsFunc(n.Members(), func(m Member) bool { return m.Name == "n2" && m.Addr == again.addr })
	}
	eventually(t, "the others refuse it first", func() bool { return all[0].metric(t, "problems_total", "conflict") > 0 })
	eventually(t, "the others have the new address", func() bool { return has(all[0]) && has(all[1]) })
	if err := all[0].Send([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := again.next(t); got != "hello" {
		t.Errorf("received %q", got)
	}
}

func TestSeedsAreLookedUpAgain(t *testing.T) {
	t.Parallel()
	var (
		answer atomic.Pointer[[]netip.Addr]
		calls  atomic.Int32
	)
	seed := start(t, quick("seed"))
	port := netip.MustParseAddrPort(seed.addr).Port()
	local := []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}
	names := func(n *node) {
		n.resolve = func(_ context.Context, _, host string) ([]netip.Addr, error) {
			calls.Add(1)
			if a := answer.Load(); a != nil {
				return *a, nil
			}
			return nil, fmt.Errorf("no such host: %s", host)
		}
	}
	late := start(t, quick("late", fmt.Sprintf("seeds.test:%d", port)), names)
	eventually(t, "it is isolated", func() bool { return calls.Load() > 1 && late.metric(t, "isolated", "") == 1 })
	answer.Store(&local)
	eventually(t, "it joined", func() bool { return len(late.Members()) == 2 && late.metric(t, "isolated", "") == 0 })

	// The last answer counts while the name does not resolve, and looking goes on.
	answer.Store(nil)
	before := calls.Load()
	eventually(t, "it is looked up again", func() bool { return calls.Load() > before+1 })
	eventually(t, "it is a member still", func() bool { return len(late.Members()) == 2 && late.metric(t, "isolated", "") == 0 })
	lost := late.metric(t, "problems_total", "failed") // on a starved machine
	if joins := late.metric(t, "joins_total", "ok"); joins != 1 && lost == 0 {
		t.Errorf("%v joins, want 1: a member is left alone", joins)
	}
}

func TestIslandsMeet(t *testing.T) {
	t.Parallel()
	// Two fleets of two; each one's first has the other's as a seed that it could
	// not reach when it started.
	var wall atomic.Bool
	wall.Store(true)
	shown := func(at string) func(*node) {
		return func(n *node) {
			n.cfg.Join = []string{"other.test:" + at[strings.LastIndex(at, ":")+1:]}
			n.resolve = func(context.Context, string, string) ([]netip.Addr, error) {
				if wall.Load() {
					return nil, io.ErrUnexpectedEOF
				}
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
		}
	}
	left := fleet(t, 2, func(name string, join ...string) Config { return quick("left "+name, join...) })
	right := start(t, quick("right"), shown(left[0].addr))
	second := start(t, quick("right second", right.addr))
	eventually(t, "the right ones know each other", func() bool { return converged([]*node{right, second}, 2) })
	wall.Store(false)
	eventually(t, "there is one fleet", func() bool { return converged([]*node{left[0], left[1], right, second}, 4) })
}

func TestOneWayPartition(t *testing.T) {
	t.Parallel()
	// n2 hears everybody and is heard by nobody over UDP: the streams keep it.
	all := fleet(t, 2, quick)
	var deaf atomic.Bool
	deaf.Store(true)
	n2 := start(t, quick("n2", all[0].addr), func(n *node) { n.lose = func(netip.AddrPort) bool { return deaf.Load() } })
	all = append(all, n2)
	eventually(t, "it joined over a stream", func() bool { return converged(all, 3) })
	eventually(t, "others say what is wrong", func() bool {
		return all[0].metric(t, "problems_total", "oneway")+all[1].metric(t, "problems_total", "oneway") > 0
	})
	if err := all[0].Send([]byte("to n2")); err != nil {
		t.Fatal(err)
	}
	if got := n2.next(t); got != "to n2" {
		t.Errorf("received %q", got)
	}
	deaf.Store(false)
	if err := n2.Send([]byte("from n2")); err != nil {
		t.Fatal(err)
	}
	for got := ""; got != "from n2"; got = all[0].next(t) {
	}
}
