package gossip

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Bounds on what peers are told. A packet has 1400 bytes, of which the label, the
// encryption and memberlist's own framing take up to 87.
const (
	MaxMessage = 1300 // bytes of one message, ours to send or theirs to receive
	MaxMeta    = 512  // bytes of Config.Meta; memberlist panics above
	MaxLabel   = 48   // bytes of Config.Label
)

// Config of a Gossip. Run's listener says where it is bound.
type Config struct {
	Name      string   // this node's id: unique in the fleet, the same after a restart; 1 to 255 bytes
	Meta      []byte   // what every member shows of itself, fixed: at most MaxMeta bytes
	Advertise string   // IP or IP:port others reach this node at; "" = the listener's, or the default route's address if that is unspecified
	Join      []string // seeds, host:port; a name may stand for many addresses. Empty: others join us
	Label     string   // the fleet's name: packets with another are dropped; 1 to MaxLabel bytes
	KeyFile   string   // see Reload; "" = not encrypted
	CIDRs     []string // networks packets and members may come from; empty = all

	GossipEvery  time.Duration // between two rounds of broadcasts: 20 ms to 1 s
	ProbeEvery   time.Duration // between two health probes; a member counts as gone after 4 to 24 of them (more above 10 members): 100 ms to 10 s
	SyncEvery    time.Duration // between two exchanges of the whole State with one other: 100 ms to 5 min
	JoinEvery    time.Duration // between two looks for seeds that are not members: 100 ms to 5 min
	ReclaimAfter time.Duration // how long a failed node's name is refused to another address: 100 ms to 1 min
	Timeout      time.Duration // one dial, one read or write of a stream, one name lookup: 100 ms to 10 s
	LeaveTimeout time.Duration // how long Run waits for its goodbye to be sent: 0 to 10 s

	Queue    int // messages waiting to be broadcast, and received ones waiting for the receiver: 16 to 65536 each
	MaxState int // bytes of State sent or taken in one exchange: 1 KiB to 8 MiB
}

// DefaultConfig fits fleets of up to some hundred members in one network; Name and
// Label are left to the caller. DESIGN.md says why each value.
func DefaultConfig() Config {
	return Config{
		GossipEvery:  50 * time.Millisecond,
		ProbeEvery:   time.Second,
		SyncEvery:    10 * time.Second,
		JoinEvery:    15 * time.Second,
		ReclaimAfter: 10 * time.Second,
		Timeout:      2 * time.Second,
		LeaveTimeout: time.Second,
		Queue:        1024,
		MaxState:     1 << 20,
	}
}

// Validate names the first field that cannot be used, its value and the remedy.
func (c *Config) Validate() error {
	switch {
	case c.Name == "" || len(c.Name) > 255:
		return fmt.Errorf("gossip: Name is %q; set a unique name of 1 to 255 bytes", c.Name)
	case len(c.Meta) > MaxMeta:
		return fmt.Errorf("gossip: Meta has %d bytes; set at most %d", len(c.Meta), MaxMeta)
	case c.Label == "" || len(c.Label) > MaxLabel:
		return fmt.Errorf("gossip: Label is %q; set the fleet's name, 1 to %d bytes", c.Label, MaxLabel)
	case c.Queue < 16 || c.Queue > 65536:
		return fmt.Errorf("gossip: Queue is %d; set 16 to 65536", c.Queue)
	case c.MaxState < 1<<10 || c.MaxState > 8<<20:
		return fmt.Errorf("gossip: MaxState is %d; set 1024 to %d bytes", c.MaxState, 8<<20)
	}
	for _, d := range []struct {
		field           string
		value, low, top time.Duration
	}{
		{"GossipEvery", c.GossipEvery, 20 * time.Millisecond, time.Second},
		{"ProbeEvery", c.ProbeEvery, 100 * time.Millisecond, 10 * time.Second},
		{"SyncEvery", c.SyncEvery, 100 * time.Millisecond, 5 * time.Minute},
		{"JoinEvery", c.JoinEvery, 100 * time.Millisecond, 5 * time.Minute},
		{"ReclaimAfter", c.ReclaimAfter, 100 * time.Millisecond, time.Minute},
		{"Timeout", c.Timeout, 100 * time.Millisecond, 10 * time.Second},
		{"LeaveTimeout", c.LeaveTimeout, 0, 10 * time.Second},
	} {
		if d.value < d.low || d.value > d.top {
			return fmt.Errorf("gossip: %s is %v; set %v to %v", d.field, d.value, d.low, d.top)
		}
	}
	for _, seed := range c.Join {
		if host, port, err := net.SplitHostPort(seed); err != nil || host == "" || !validPort(port) {
			return fmt.Errorf("gossip: Join has %q; write host:port, as in agents.example:4783", seed)
		}
	}
	if _, err := c.advertise(); err != nil {
		return err
	}
	_, err := c.networks()
	return err
}

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// advertise is the configured address; its port is 0 where the listener's counts.
func (c *Config) advertise() (netip.AddrPort, error) {
	if c.Advertise == "" {
		return netip.AddrPort{}, nil
	}
	at, err := netip.ParseAddrPort(c.Advertise)
	if err != nil {
		var ip netip.Addr
		ip, err = netip.ParseAddr(c.Advertise)
		at = netip.AddrPortFrom(ip, 0)
	}
	if err != nil || at.Addr().IsUnspecified() {
		return netip.AddrPort{}, fmt.Errorf("gossip: Advertise is %q; set an IP, or IP:port, that others reach", c.Advertise)
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

func (c *Config) networks() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, s := range c.CIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("gossip: CIDRs has %q; write a network, as in 10.0.0.0/8", s)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
