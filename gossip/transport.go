package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	maxPacket  = 1600 // bytes; members send at most 1400 and a header
	maxStreams = 32   // incoming at once: each may hold its limit in memory before it is authenticated
)

// Listener is a UDP and a TCP socket on one port.
type Listener struct {
	udp *net.UDPConn
	tcp *net.TCPListener
}

// Listen binds address, host:port, for packets and streams. Port 0 takes a free one.
func Listen(address string) (*Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("gossip: listen on %q: %w; write host:port", address, err)
	}
	for try := 0; ; try++ {
		l, err := listen(at)
		if err == nil {
			return l, nil
		}
		if at.Port != 0 || try == 9 { // a port free for TCP may be taken for UDP
			return nil, fmt.Errorf("gossip: listen on %s: %w", address, err)
		}
	}
}

func listen(at *net.TCPAddr) (*Listener, error) {
	tcp, err := net.ListenTCP("tcp", at)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: at.IP, Port: tcp.Addr().(*net.TCPAddr).Port, Zone: at.Zone})
	if err != nil {
		tcp.Close()
		return nil, err
	}
	udp.SetReadBuffer(2 << 20) // as much as the kernel grants: a burst waits there while this process does not run
	return &Listener{udp, tcp}, nil
}

// Addr is where it is bound.
func (l *Listener) Addr() netip.AddrPort {
	at := l.tcp.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// Close frees the port. Run does so as well.
func (l *Listener) Close() error { return errors.Join(l.udp.Close(), l.tcp.Close()) }

// transport is memberlist.NodeAwareTransport with bounds: sources outside the
// allowed networks and packets without the fleet's label end here, before a copy,
// a decryption or a log line, and streams are bounded in number and length.
type transport struct {
	*Listener
	self    netip.AddrPort
	allowed []netip.Prefix // empty = all
	label   []byte         // what every packet starts with
	limit   int64          // bytes read from one stream
	metrics *metrics
	lose    func(to netip.AddrPort) bool // nil but in tests: which packets the network loses

	packets chan *memberlist.Packet
	streams chan net.Conn
	slots   chan struct{}
	dials   context.Context // ends the streams that this node opened
	open    context.Context // ends everything
	close   context.CancelFunc
	wg      sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// newTransport owns l from now on; ctx ends outgoing streams and Shutdown the rest.
func newTransport(ctx context.Context, l *Listener, cfg *Config, m *metrics) (*transport, error) {
	self, err := cfg.advertise()
	if err != nil {
		return nil, err
	}
	t := &transport{
		Listener: l, metrics: m,
		label:   append([]byte{244, byte(len(cfg.Label))}, cfg.Label...),
		limit:   2*int64(cfg.MaxState) + 1<<20, // the state, and the node table as much again and more
		packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn),
		slots:   make(chan struct{}, maxStreams),
		dials:   ctx,
	}
	if t.allowed, err = cfg.networks(); err != nil {
		return nil, err
	}
	if t.self, err = reachable(self, l.Addr()); err != nil {
		return nil, err
	}
	if !t.allows(t.self.Addr()) {
		return nil, fmt.Errorf("gossip: this node's own address %s is in none of CIDRs %v; add its network or set Advertise", t.self.Addr(), t.allowed)
	}
	t.open, t.close = context.WithCancel(context.WithoutCancel(ctx))
	return t, nil
}

// reachable fills what is not configured from the listener; an unspecified address
// becomes the source address of the default route. No packet is sent for it.
func reachable(set, bound netip.AddrPort) (netip.AddrPort, error) {
	ip, port := set.Addr(), set.Port()
	if port == 0 {
		port = bound.Port()
	}
	if !ip.IsValid() {
		ip = bound.Addr()
	}
	if ip.IsUnspecified() {
		c, err := net.Dial("udp", "192.0.2.1:9")
		if err != nil {
			if c, err = net.Dial("udp", "[2001:db8::1]:9"); err != nil {
				return netip.AddrPort{}, errors.New("gossip: bound to all addresses and no default route to choose one by; set Advertise")
			}
		}
		defer c.Close()
		ip = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	}
	return netip.AddrPortFrom(ip.Unmap().WithZone(""), port), nil
}

func (t *transport) allows(ip netip.Addr) bool {
	for _, p := range t.allowed {
		if p.Contains(ip) {
			return true
		}
	}
	return len(t.allowed) == 0
}

// start reads both sockets until Shutdown.
func (t *transport) start() {
	t.wg.Go(t.readPackets)
	t.wg.Go(t.accept)
}

func (t *transport) readPackets() {
	buf := make([]byte, maxPacket+1)
	for t.open.Err() == nil {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.pause(10 * time.Millisecond)
			continue
		}
		t.metrics.in.Add(float64(n))
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		switch {
		case !t.allows(from.Addr()):
			t.metrics.drop(dropNetwork)
			continue
		case n > maxPacket || n == len(t.label) || !bytes.HasPrefix(buf[:n], t.label):
			t.metrics.drop(dropLabel)
			continue
		}
		p := &memberlist.Packet{Buf: bytes.Clone(buf[:n]), From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.open.Done():
		}
	}
}

func (t *transport) accept() {
	for t.open.Err() == nil {
		c, err := t.tcp.AcceptTCP()
		if err != nil { // closed, or out of files: those come back
			t.pause(100 * time.Millisecond)
			continue
		}
		from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if !t.allows(from) {
			t.metrics.drop(dropNetwork)
			c.Close()
			continue
		}
		select {
		case t.slots <- struct{}{}:
		default:
			t.metrics.drop(dropStream)
			c.Close()
			continue
		}
		s := t.stream(t.open, c, func() { <-t.slots })
		select {
		case t.streams <- s:
		case <-t.open.Done():
			s.Close()
		}
	}
}

func (t *transport) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.open.Done():
	}
}

// stream counts and bounds what is read, and ends with ctx.
type stream struct {
	net.Conn
	in      io.Reader
	metrics *metrics
	end     func()
}

func (t *transport) stream(ctx context.Context, c net.Conn, closed func()) *stream {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	return &stream{
		Conn: c, in: io.LimitReader(c, t.limit), metrics: t.metrics,
		end: sync.OnceFunc(func() { stop(); closed() }),
	}
}

// Read is the connection's, up to the limit.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.in.Read(b)
	s.metrics.in.Add(float64(n))
	return n, err
}

// Write is the connection's.
func (s *stream) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.metrics.out.Add(float64(n))
	return n, err
}

// Close gives the stream's place to the next.
func (s *stream) Close() error {
	s.end()
	return s.Conn.Close()
}

// FinalAdvertiseAddr is where others reach this node.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.self.Addr().AsSlice(), int(t.self.Port()), nil
}

// WriteToAddress sends a packet; nothing says whether it arrives.
func (t *transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	at, err := netip.ParseAddrPort(to.Addr)
	if err != nil {
		return time.Time{}, err
	}
	if t.lose == nil || !t.lose(at) {
		_, err = t.udp.WriteToUDPAddrPort(b, at)
	}
	t.metrics.out.Add(float64(len(b)))
	return time.Now(), err
}

// DialAddressTimeout opens a stream.
func (t *transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	c, err := d.DialContext(t.dials, "tcp", to.Addr)
	if err != nil {
		return nil, err
	}
	return t.stream(t.dials, c, func() {}), nil
}

// WriteTo is for transports that know no names; memberlist does not call it.
func (t *transport) WriteTo(b []byte, to string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: to})
}

// DialTimeout is for transports that know no names; memberlist does not call it.
func (t *transport) DialTimeout(to string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: to}, timeout)
}

// PacketCh gives the packets that passed.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh gives the streams that passed.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown closes the sockets and all streams and waits for the readers. It may
// be called again.
func (t *transport) Shutdown() error {
	t.close()
	err := t.Close()
	t.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
