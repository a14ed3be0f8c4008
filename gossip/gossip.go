// Package gossip tells the fleet's nodes of each other and carries small messages
// between them, as a shell around memberlist: State is what all share, exchanged
// whole now and then; Send reaches every member once, soon, or not at all;
// Broadcast reaches all of them with high probability. It knows no payload.
//
// What comes through here is advice: it can be late, doubled, lost or replayed,
// and who holds the key can say anything. DESIGN.md has settings and bounds.
package gossip

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	retransmit = 8                     // times ceil(log10(members+1)): how often each node tells a broadcast on
	sendQueue  = 16                    // messages of Send waiting
	sendGap    = 10 * time.Millisecond // between two of them: what our own mistakes can load the network with
)

// State is the table all members share. Both methods are called from several
// goroutines; merging the same state twice, or an older one, must be harmless.
type State interface {
	encoding.BinaryMarshaler  // at most Config.MaxState bytes, else nothing is sent
	Merge(state []byte) error // another node's; an error is counted and logged. state may be kept
}

// Gossip is one node. It is made by New and lives while Run does; the other
// methods may be called at any time.
type Gossip struct {
	cfg     Config
	state   State
	receive func(msg []byte)
	log     *slog.Logger
	metrics *metrics
	logs    *logs
	table   *table
	seen    *seen
	queue   memberlist.TransmitLimitedQueue

	sends    chan []byte
	received chan []byte
	list     atomic.Pointer[memberlist.Memberlist] // nil before Run and after
	isolated atomic.Bool                           // set by joiner

	reload   sync.Mutex          // one at a time
	ring     *memberlist.Keyring // nil without KeyFile
	reloaded chan struct{}       // size 1: tells joiner

	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	lose    func(to netip.AddrPort) bool // of transport, in tests
}

// New reads the key file and starts nothing. receive is called with what others
// Send and Broadcast, by one goroutine; it may keep msg and must not modify it.
// While it blocks up to Queue messages wait and the rest is dropped. The same
// broadcast comes once, and never to its origin.
func New(cfg Config, state State, receive func(msg []byte), log *slog.Logger, reg prometheus.Registerer) (*Gossip, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	g := &Gossip{
		cfg: cfg, state: state, receive: receive, log: log,
		table:    &table{self: cfg.Name, log: log, nodes: map[string]memberlist.Node{}},
		seen:     newSeen(maxSeen),
		sends:    make(chan []byte, sendQueue),
		received: make(chan []byte, cfg.Queue),
		reloaded: make(chan struct{}, 1),
		resolve:  net.DefaultResolver.LookupNetIP,
	}
	g.queue = memberlist.TransmitLimitedQueue{NumNodes: g.table.len, RetransmitMult: retransmit}
	if cfg.KeyFile != "" {
		g.ring = &memberlist.Keyring{}
		if err := g.Reload(); err != nil {
			return nil, err
		}
	}
	var err error
	if g.metrics, err = newMetrics(reg, g); err != nil {
		return nil, fmt.Errorf("gossip: metrics: %w", err)
	}
	g.logs = &logs{log: log, metrics: g.metrics}
	return g, nil
}

// Reload reads Config.KeyFile again: one base64 key of 16, 24 or 32 bytes per
// line, at most 8; empty lines and those that start with # do not count. The
// first is what this node encrypts with; all are tried to decrypt. To rotate, let
// every node have "old, new", then "new, old", then "new". After an error the
// keys are the old ones.
func (g *Gossip) Reload() error {
	if g.ring == nil {
		return nil
	}
	g.reload.Lock()
	defer g.reload.Unlock()
	keys, err := ReadKeys(g.cfg.KeyFile)
	if err != nil {
		return err
	}
	if err := install(g.ring, keys); err != nil {
		return err
	}
	select {
	case g.reloaded <- struct{}{}:
	default:
	}
	return nil
}

// Members are the live ones, this node included, by name; none while Run is not on.
// A node that died is one for some seconds more.
func (g *Gossip) Members() []Member { return g.table.members() }

// Send tells every other member of msg, directly and best effort, 1 to MaxMessage
// bytes; else it is an error. It copies msg and never blocks: what comes faster than
// every 10 ms waits, then is dropped and counted.
func (g *Gossip) Send(msg []byte) error {
	if err := checkSize(msg); err != nil {
		g.metrics.drop(dropSize)
		return err
	}
	select {
	case g.sends <- appendDirect(nil, msg):
	default:
		g.metrics.drop(dropSend)
	}
	return nil
}

// Broadcast tells all members of msg by way of each other, 1 to MaxMessage bytes;
// else it is an error. It copies msg and never blocks. Above Queue waiting messages
// the one that was sent most often is dropped and counted; of those the shortest, of
// those the oldest. Nothing is queued while there is no other member: late ones
// learn of things by State.
func (g *Gossip) Broadcast(msg []byte) error {
	if err := checkSize(msg); err != nil {
		g.metrics.drop(dropSize)
		return err
	}
	frame, id := newBroadcast(msg)
	g.seen.first(id)
	g.spread(frame)
	return nil
}

func (g *Gossip) spread(frame []byte) {
	if g.table.len() < 2 {
		return
	}
	g.queue.QueueBroadcast(once(frame))
	if over := g.queue.NumQueued() - g.cfg.Queue; over > 0 {
		g.queue.Prune(g.cfg.Queue)
		g.metrics.drops[dropBroadcast].Add(float64(over))
	}
}

// once is a broadcast that replaces no other.
type once []byte

// Invalidates is never true.
func (o once) Invalidates(memberlist.Broadcast) bool { return false }

// Message is what is sent.
func (o once) Message() []byte { return o }

// Finished is not of interest.
func (o once) Finished() {}

// UniqueBroadcast spares the queue the search for what Invalidates.
func (o once) UniqueBroadcast() {}

// Run is called once. It takes part in the fleet through l, which it closes, until
// ctx ends; then it says goodbye, for LeaveTimeout at most. It returns an error only if it cannot
// start: seeds that do not answer are tried again for as long as it runs. Probes
// that memberlist has under way may go on for some seconds after it returned.
func (g *Gossip) Run(ctx context.Context, l *Listener) error {
	t, err := newTransport(ctx, l, &g.cfg, g.metrics)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	t.lose = g.lose
	t.start()
	g.logs.quiet.Store(false)
	list, err := memberlist.Create(g.settings(t))
	if err != nil {
		return errors.Join(fmt.Errorf("gossip: start on %s: %w", l.Addr(), err), t.Shutdown())
	}
	g.list.Store(list)
	g.log.Info("gossip: listening", "addr", l.Addr(), "advertise", t.self, "encrypted", g.ring != nil)

	var loops sync.WaitGroup
	loops.Go(func() { g.sendAll(ctx, list) })
	loops.Go(func() { g.deliver(ctx) })
	loops.Go(func() {
		(&joiner{g: g, list: list, self: t.self, known: map[string][]netip.AddrPort{}}).run(ctx)
	})
	loops.Wait()

	g.logs.quiet.Store(true)
	if g.cfg.LeaveTimeout > 0 {
		if err := list.Leave(g.cfg.LeaveTimeout); err != nil {
			g.log.Info("gossip: left without a goodbye", "err", err)
		}
	}
	g.list.Store(nil)
	err = list.Shutdown()
	g.table.close()
	g.isolated.Store(false)
	return err
}

// settings are memberlist's, with this package's reasons in DESIGN.md.
func (g *Gossip) settings(t *transport) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label, c.Transport = g.cfg.Name, g.cfg.Label, t
	c.BindPort = int(t.self.Port()) // what memberlist takes for members that name no port
	c.ProtocolVersion = memberlist.ProtocolVersionMax
	c.EnableCompression = false
	c.Keyring = g.ring
	c.TCPTimeout = g.cfg.Timeout
	c.RetransmitMult = retransmit
	c.GossipInterval = g.cfg.GossipEvery
	c.ProbeInterval, c.ProbeTimeout = g.cfg.ProbeEvery, g.cfg.ProbeEvery/2
	c.PushPullInterval = g.cfg.SyncEvery
	c.DeadNodeReclaimTime = g.cfg.ReclaimAfter
	for _, p := range t.allowed {
		c.CIDRsAllowed = append(c.CIDRsAllowed, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	c.Delegate, c.Events = &delegate{g}, g.table
	c.Logger = log.New(g.logs, "", 0)
	return c
}

// sendAll passes on what Send queued. It waits only where messages come faster than
// sendGap: each timer wakes the process once more.
func (g *Gossip) sendAll(ctx context.Context, list *memberlist.Memberlist) {
	for next := time.Now(); ; next = time.Now().Add(sendGap) {
		select {
		case frame := <-g.sends:
			if wait := time.Until(next); wait > 0 {
				time.Sleep(wait)
			}
			for _, to := range g.table.others() {
				if list.SendBestEffort(&to, frame) != nil {
					g.metrics.drop(dropPeer)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// deliver hands received messages over, broadcasts on first sight only, and tells
// those on.
func (g *Gossip) deliver(ctx context.Context) {
	for {
		select {
		case frame := <-g.received:
			kind, id, payload := parse(frame)
			switch {
			case kind == broadcast && !g.seen.first(id):
				continue
			case kind == broadcast:
				g.spread(frame)
			case kind != direct:
				g.metrics.drop(dropFrame)
				continue
			}
			g.receive(payload)
		case <-ctx.Done():
			return
		}
	}
}

// delegate is what memberlist calls for our data.
type delegate struct{ g *Gossip }

// NodeMeta is fixed and was checked: memberlist panics if it is too long.
func (d *delegate) NodeMeta(int) []byte { return d.g.cfg.Meta }

// NotifyMsg holds up all packets while it runs, and msg is memberlist's.
func (d *delegate) NotifyMsg(msg []byte) {
	if len(msg) > broadcastHeader+MaxMessage {
		d.g.metrics.drop(dropFrame)
		return
	}
	select {
	case d.g.received <- append([]byte(nil), msg...):
	default:
		d.g.metrics.drop(dropReceive)
	}
}

// GetBroadcasts fills a packet. A frame is at least 10 bytes, so no packet has the
// 256 messages that memberlist cannot count.
func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.g.queue.GetBroadcasts(overhead, limit)
}

// LocalState is for another node.
func (d *delegate) LocalState(bool) []byte {
	state, err := d.g.state.MarshalBinary()
	if err == nil && len(state) > d.g.cfg.MaxState {
		err = fmt.Errorf("%d bytes; at most %d are sent", len(state), d.g.cfg.MaxState)
	}
	if err != nil {
		d.g.metrics.drop(dropState)
		d.g.logs.note(stateKept, err.Error())
		return nil
	}
	return state
}

// MergeRemoteState is another node's.
func (d *delegate) MergeRemoteState(state []byte, _ bool) {
	var err error
	if len(state) > d.g.cfg.MaxState {
		err = fmt.Errorf("%d bytes; at most %d are taken", len(state), d.g.cfg.MaxState)
	} else {
		err = d.g.state.Merge(state)
	}
	if err != nil {
		d.g.metrics.drop(dropState)
		d.g.logs.note(stateRefused, err.Error())
	}
}
