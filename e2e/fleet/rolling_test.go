//go:build e2e

package fleet

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestRollingRestart: each agent and each gateway is restarted in turn under load, a
// gateway after its balancer took it out, and no client of a model with two engines
// notices. With -old the fleet begins as an earlier build, and old and new work together
// meanwhile.
func TestRollingRestart(t *testing.T) {
	f := the(t)
	again := func(p *part) error {
		if err := p.end(syscall.SIGTERM, 40*time.Second); err != nil {
			return err
		}
		if err := p.start(); err != nil {
			return err
		}
		return p.awaitReady(30 * time.Second)
	}
	turn := append(append([]*part{}, f.agents...), f.gateways...)
	if *older != "" {
		for _, p := range turn {
			p.binary = *older
			if err := again(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	var (
		out     atomic.Pointer[part] // of the balancer
		all     sync.WaitGroup
		replies []*reply
		mu      sync.Mutex
		stop    = make(chan struct{})
	)
	all.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			g := f.gateways[i%2]
			if g == out.Load() {
				g = f.gateways[(i+1)%2]
			}
			a := ask{model: alpha, prompt: fmt.Sprintf("rolling %d", i), tokens: 40, stream: i%2 == 0, key: key(i % 20), header: patient}
			all.Go(func() {
				r := send(t.Context(), g, a, nil)
				mu.Lock()
				replies = append(replies, r)
				mu.Unlock()
			})
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	began := time.Now()
	for _, p := range turn {
		out.Store(p)
		p.binary = ""
		if err := again(p); err != nil {
			t.Error(err)
		}
		out.Store(nil)
	}
	took := time.Since(began)
	close(stop)
	all.Wait()
	if n := f.tally(t, replies); n[whole] != len(replies) {
		t.Errorf("%d of %d requests got their whole answer", n[whole], len(replies))
	}
	t.Logf("%d parts restarted in %v; at rest after %v", len(turn), took.Round(time.Millisecond), f.calm(t, 60*time.Second))
}
