package main

import (
	"slices"
	"sync"
	"time"
)

const (
	often  = 50 * time.Millisecond  // between two readings of memory and utilization
	seldom = 250 * time.Millisecond // while the driver is slow
	// slowCall is the p99 of a call from which on the driver is asked seldom: it
	// serialises calls with the engine's own. calm is the p99 for going back.
	slowCall = time.Millisecond
	calm     = slowCall / 2
	window   = 200 // calls a p99 is taken of: 5 s of one GPU
	stay     = time.Minute

	initWithin = 20 * time.Second // initialising many GPUs without persistence mode takes seconds
)

// pace decides how often the driver is asked. Not safe for concurrent use.
type pace struct {
	every   time.Duration
	widened int       // how often it went to seldom
	since   time.Time // of every
	took    []time.Duration
}

// note takes one call's duration at now.
func (p *pace) note(now time.Time, d time.Duration) {
	if p.took = append(p.took, d); len(p.took) < window {
		return
	}
	worst := quantile(p.took, 0.99)
	p.took = p.took[:0]
	switch {
	case p.every == often && worst > slowCall:
		p.every, p.since = seldom, now
		p.widened++
	case p.every == seldom && worst <= calm && now.Sub(p.since) >= stay:
		p.every, p.since = often, now
	}
}

// quantile sorts d, which is not empty.
func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

// calls knows which call of the library runs and how long calls take.
type calls struct {
	deadline time.Duration
	took     func(name string, d time.Duration) // after each call; on the caller's goroutine

	mu    sync.Mutex // guards the rest
	name  string     // "" = none runs
	since time.Time
	limit time.Duration
}

// do runs one call within deadline; limit 0 means the usual one. Calls never overlap.
func (c *calls) do(name string, limit time.Duration, f func() int) int {
	if limit == 0 {
		limit = c.deadline
	}
	from := time.Now()
	c.set(name, from, limit)
	code := f()
	c.set("", time.Time{}, 0)
	c.took(name, time.Since(from))
	return code
}

func (c *calls) set(name string, since time.Time, limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.name, c.since, c.limit = name, since, limit
}

// overdue names the call that has run longer than its limit at now; "" = none.
func (c *calls) overdue(now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.name != "" && now.Sub(c.since) > c.limit {
		return c.name
	}
	return ""
}
