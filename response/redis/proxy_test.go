package redis

import (
	"net"
	"sync"
	"testing"
)

// proxy is a network between a client and a Redis that can break.
type proxy struct {
	t      testing.TB
	to     string
	addr   string
	mu     sync.Mutex // guards what follows
	l      net.Listener
	conns  map[net.Conn]bool
	stuck  chan struct{} // closed = bytes flow
	closed bool
	all    sync.WaitGroup
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	p := &proxy{t: t, to: to, addr: "127.0.0.1:0", conns: map[net.Conn]bool{}, stuck: make(chan struct{})}
	close(p.stuck)
	p.listen()
	t.Cleanup(func() { p.resume(); p.cut(); p.all.Wait() })
	return p
}

func (p *proxy) listen() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatalf("proxy: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.l, p.addr, p.closed = l, l.Addr().String(), false
	p.all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns[in], p.conns[out] = true, true
			if p.closed {
				_, _ = in.Close(), out.Close()
			}
			p.mu.Unlock()
			p.all.Go(func() { p.copy(in, out) })
			p.all.Go(func() { p.copy(out, in) })
		}
	})
}

func (p *proxy) copy(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		stuck := p.stuck
		p.mu.Unlock()
		<-stuck
		if _, werr := to.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}

// breakAll ends the connections there are; new ones are taken.
func (p *proxy) breakAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// cut ends all connections and takes no new ones.
func (p *proxy) cut() {
	p.mu.Lock()
	p.closed = true
	_ = p.l.Close()
	p.mu.Unlock()
	p.breakAll()
}

// stall holds what is sent from now on, in both directions, until resume.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = make(chan struct{})
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stuck:
	default:
		close(p.stuck)
	}
}
