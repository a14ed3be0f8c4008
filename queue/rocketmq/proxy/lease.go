package proxy

import (
	"sync"
	"time"
)

// lease renews a delivery while its handler runs. No goroutine waits: a timer does.
type lease struct {
	renew func() error // at most the library's 3 s

	mu    sync.Mutex // held while renew runs, so that end waits for it
	over  bool
	timer *time.Timer
}

func newLease(renew func() error) *lease {
	l := &lease{renew: renew}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(renewEvery, l.fire)
	return l
}

func (l *lease) fire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	next := renewEvery
	if l.renew() != nil {
		next = maxPause
	}
	l.timer.Reset(next)
}

// end stops the renewals; none runs when it returns. The result that follows needs
// the last one's handle.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.timer.Stop()
}
