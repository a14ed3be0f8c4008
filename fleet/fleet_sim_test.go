package fleet

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/reason"
)

// host is one process of a simulated fleet: an agent, or a gateway without a row.
type host struct {
	id    uint64
	skew  time.Duration // of its clock, which moves at every start
	table *Table
	up    bool
	side  int // of the partition
}

// network is a fleet in steps of 100 ms. Every agent sends its row to every host
// each second step; a tenth of the packets is lost, some arrive twice or late; every
// three seconds each host exchanges tables with another.
type network struct {
	t     *testing.T
	rng   *rand.Rand
	now   time.Time // true time; a host's clock is this plus its skew
	hosts []*host
	late  []late
	split bool
}

// late is a packet that is under way for seconds.
type late struct {
	from   *host
	packet []byte
}

func newNetwork(t *testing.T, agents, gateways int) *network {
	n := &network{t: t, rng: rand.New(rand.NewPCG(1, uint64(agents))), now: noon}
	for i := range agents + gateways {
		h := &host{side: i % 2}
		if i < agents {
			h.id = ID(fmt.Sprint("node-", i))
		}
		n.start(h)
		n.hosts = append(n.hosts, h)
	}
	return n
}

// start gives a host a new table and another clock, up to five minutes wrong.
func (n *network) start(h *host) {
	h.up, h.skew = true, time.Duration(n.rng.IntN(600_000)-300_000)*time.Millisecond
	h.table = NewTable(h.id, uint64(n.clock(h).UnixMilli()))
}

func (n *network) clock(h *host) time.Time { return n.now.Add(h.skew) }

func (n *network) reach(a, b *host) bool {
	return a != b && a.up && b.up && !(n.split && a.side != b.side)
}

func (n *network) step(i int) {
	n.now = n.now.Add(100 * time.Millisecond)
	for _, from := range n.hosts {
		if !from.up || from.id == 0 || i%2 == 1 {
			continue
		}
		at := n.clock(from)
		row := from.table.Own(at, Row{State: reason.OK, Models: Models("m"), At: at})
		packet := AppendRow(nil, &row, at)
		for _, to := range n.hosts {
			switch chance := n.rng.IntN(100); {
			case !n.reach(from, to) || chance < 10:
				continue
			case chance < 15:
				n.late = append(n.late, late{from, packet})
			case chance < 20:
				n.deliver(to, packet)
			}
			n.deliver(to, packet)
		}
	}
	if len(n.late) > 50 {
		to, old := n.hosts[n.rng.IntN(len(n.hosts))], n.late[n.rng.IntN(len(n.late))]
		if n.reach(old.from, to) {
			n.deliver(to, old.packet)
		}
		n.late = n.late[1:]
		garbage := make([]byte, n.rng.IntN(100))
		for j := range garbage {
			garbage[j] = byte(n.rng.Uint32())
		}
		_ = to.table.Receive(n.clock(to), garbage)
		_ = to.table.Merge(n.clock(to), garbage)
	}
	if i%30 == 0 {
		for _, h := range n.hosts {
			n.exchange(h, n.hosts[n.rng.IntN(len(n.hosts))])
		}
	}
}

func (n *network) exchange(a, b *host) {
	if !n.reach(a, b) {
		return
	}
	forth, back := a.table.AppendTable(nil, n.clock(a)), b.table.AppendTable(nil, n.clock(b))
	if err := a.table.Merge(n.clock(a), back); err != nil {
		n.t.Fatal(err)
	}
	if err := b.table.Merge(n.clock(b), forth); err != nil {
		n.t.Fatal(err)
	}
}

func (n *network) deliver(to *host, packet []byte) {
	if !to.up {
		return
	}
	if err := to.table.Receive(n.clock(to), packet); err != nil {
		n.t.Fatal(err)
	}
}

func (n *network) steps(count int) {
	for i := range count {
		n.step(i)
	}
}

// check holds what every host must see: the engines of its side that are up, and
// of the others nothing that counts.
func (n *network) check(when string) {
	n.t.Helper()
	for i, h := range n.hosts {
		if !h.up {
			continue
		}
		want, now := 0, n.clock(h)
		for _, peer := range n.hosts {
			if peer.id != 0 && (peer == h || n.reach(peer, h)) {
				want++
			}
		}
		if got, _, _ := Drain(h.table.Rows(now), "m", now); got != want {
			n.t.Fatalf("%s: host %d counts %d engines, want %d", when, i, got, want)
		}
	}
}

// TestPartition: both sides go on with their own rows, and are one again at once.
func TestPartition(t *testing.T) {
	n := newNetwork(t, 10, 2)
	n.steps(10)
	n.check("at the start")
	for range 5 {
		n.split = true
		n.steps(20)
		n.check("apart")
		n.split = false
		n.steps(8)
		n.check("healed")
	}
	n.split = true
	n.steps(700)
	n.check("apart for 70 s")
	for i, h := range n.hosts {
		if got := len(h.table.Rows(n.clock(h))); got != 5 {
			t.Errorf("host %d has %d rows after a minute apart, want the 5 of its side", i, got)
		}
	}
}

// TestRejoin kills 100 agents in turn. Each comes back under its name with another
// clock, behind or ahead by minutes.
func TestRejoin(t *testing.T) {
	n := newNetwork(t, 8, 2)
	n.steps(10)
	for kill := range 100 {
		h := n.hosts[kill%8]
		h.up = false
		n.steps(3 + kill%20)
		n.start(h)
		n.exchange(h, n.hosts[(kill+1)%len(n.hosts)]) // joining is an exchange; there it hears of its past
		n.steps(5)
		n.check(fmt.Sprint("after kill ", kill))
	}
	if got := len(n.hosts[9].table.Rows(n.clock(n.hosts[9]))); got != 8 {
		t.Errorf("a gateway has %d rows of 8 engines", got)
	}
}
