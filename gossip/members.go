package gossip

import (
	"cmp"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Member is a live node of the fleet.
type Member struct {
	Name string
	Addr string // host:port
	Meta []byte // not to be modified
}

// table is memberlist's list of live members, copied as it changes: the nodes that
// memberlist itself hands out are written to while one reads them. memberlist
// calls the three Notify methods, holding its own lock.
type table struct {
	self string
	log  *slog.Logger

	mu    sync.Mutex // guards both
	nodes map[string]memberlist.Node
	lost  []lost // newest last; of a name and of an address at most one
}

// lost is a member that is none any more. It may live behind a partition, so Send goes
// on telling it: with the first packet through, what it says is known again, long
// before it is a member. memberlist does not say who said goodbye.
type lost struct {
	memberlist.Node
	since time.Time
}

const (
	maxLost  = 128 // the oldest goes
	keepLost = 10 * time.Minute
)

// NotifyJoin tells of a new member, or of one that is back.
func (t *table) NotifyJoin(n *memberlist.Node) {
	if t.change(n, true) {
		t.log.Info("gossip: member joined", "member", n.Name, "addr", n.Address())
	}
}

// NotifyUpdate tells of a member's new Meta.
func (t *table) NotifyUpdate(n *memberlist.Node) { t.change(n, true) }

// NotifyLeave tells of a member that left or failed.
func (t *table) NotifyLeave(n *memberlist.Node) {
	if t.change(n, false) {
		t.log.Info("gossip: member gone", "member", n.Name, "addr", n.Address())
	}
}

// change reports whether it is about another node, before close.
func (t *table) change(n *memberlist.Node, alive bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.nodes == nil:
		return false
	case alive:
		t.nodes[n.Name] = *n
	default:
		delete(t.nodes, n.Name)
	}
	t.lost = slices.DeleteFunc(t.lost, func(l lost) bool { return l.Name == n.Name || l.Address() == n.Address() })
	if !alive && n.Name != t.self {
		t.lost = append(t.lost[max(len(t.lost)+1-maxLost, 0):], lost{*n, time.Now()})
	}
	return n.Name != t.self
}

// close empties the table for good: timers of memberlist's may outlive it.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes, t.lost = nil, nil
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes)
}

// others are all members but this node, and the lost ones.
func (t *table) others() []memberlist.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]memberlist.Node, 0, len(t.nodes)+len(t.lost))
	for name, n := range t.nodes {
		if name != t.self {
			all = append(all, n)
		}
	}
	for len(t.lost) > 0 && time.Since(t.lost[0].since) > keepLost {
		t.lost = t.lost[1:]
	}
	for i := range t.lost {
		all = append(all, t.lost[i].Node)
	}
	return all
}

// at reports whether a member has this address.
func (t *table) at(addr netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.nodes {
		if n.Port == addr.Port() && n.Addr.Equal(net.IP(addr.Addr().AsSlice())) {
			return true
		}
	}
	return false
}

func (t *table) members() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Member, 0, len(t.nodes))
	for _, n := range t.nodes {
		all = append(all, Member{Name: n.Name, Addr: n.Address(), Meta: n.Meta})
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
