// Package health turns an engine's condition over time into the two things that must
// not flap: what health checks are told, and whether lanes are subscribed; and it says
// why, in words. It does no IO.
package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"penstock/reason"
	"penstock/registry"
	"penstock/scraper"
	"penstock/vllm"
)

// upAfter good samples in a row, health says SERVING again: a flapping engine must not
// flap its load balancer.
const upAfter = 3

// CauseLen bounds a cause in bytes: probes and refusals show it on one line.
const CauseLen = 120

// Usable reports whether an engine in condition c takes work at all. Being full is not
// a condition: Suspend is the brake then.
func Usable(c reason.Reason) bool {
	switch c {
	case reason.Starting, reason.Blind, reason.Stuck, reason.Asleep, reason.Draining, reason.EngineDown, reason.GPULost, reason.GPUFault:
		return false
	}
	return true
}

// Health is what an agent's health checks are told.
type Health struct {
	Ready  bool
	Reason reason.Reason // OK, or why not ready
	Models []string      // served now, sorted; empty while not known
	Since  time.Time     // not ready since then; zero = ready, or about to be
	Cause  string        // of a Reason, on one line of at most CauseLen bytes without addresses; "" = not known
}

// Why is what a person is told who asks why it is not ready: "blind 12 s:
// connection refused". "" while ready.
func (h Health) Why(now time.Time) string {
	if h.Ready {
		return ""
	}
	return (&registry.Engine{State: h.Reason, Since: h.Since, Cause: h.Cause}).Why(now)
}

// Equal is without what changes all the time.
func (h Health) Equal(o Health) bool {
	return h.Ready == o.Ready && h.Reason == o.Reason && slices.Equal(h.Models, o.Models)
}

// Pulse follows one engine. It is not safe for concurrent use.
type Pulse struct {
	leaveAfter time.Duration

	condition reason.Reason
	good      int       // good samples since the engine became usable
	bad       time.Time // since when it is not usable
	taking    bool
}

// NewPulse gives the lanes of an engine up once it has been unusable for longer than
// leaveAfter; 0 = at once.
func NewPulse(leaveAfter time.Duration) Pulse { return Pulse{leaveAfter: leaveAfter} }

// Condition is what Look was told last; None before.
func (p *Pulse) Condition() reason.Reason { return p.condition }

// Taking reports whether lanes are to be subscribed.
func (p *Pulse) Taking() bool { return p.taking }

// Serving is what health checks are told.
func (p *Pulse) Serving() bool { return p.good >= upAfter && Usable(p.condition) }

// Unusable is for how long the engine has been unusable at now; 0 = it is usable.
func (p *Pulse) Unusable(now time.Time) time.Duration {
	if Usable(p.condition) {
		return 0
	}
	return now.Sub(p.bad)
}

// Sample counts a good sample and reports whether that made it serving; call Look
// first.
func (p *Pulse) Sample() (up bool) {
	if !Usable(p.condition) || p.good >= upAfter {
		return false
	}
	p.good++
	return p.good == upAfter
}

// Look takes the condition at now and reports whether it changed.
func (p *Pulse) Look(now time.Time, c reason.Reason) (changed bool) {
	was := p.condition
	p.condition = c
	if Usable(c) {
		p.taking = true
		return c != was
	}
	p.good = 0
	if Usable(was) || was == reason.None {
		p.bad = now
	}
	if c == reason.Draining || p.leaveAfter == 0 || now.Sub(p.bad) > p.leaveAfter {
		p.taking = false
	}
	return c != was
}

// Health is without a cause. models are what the engine serves.
func (p *Pulse) Health(models []string) Health {
	h := Health{Ready: p.Serving() && len(models) > 0, Reason: reason.OK, Models: models}
	switch {
	case h.Ready:
	case Usable(p.condition): // not good for long enough yet, or no models
		h.Reason = reason.Starting
	default:
		h.Reason, h.Since = p.condition, p.bad
	}
	return h
}

// Brief is what went wrong with a call to the engine, on one line of at most CauseLen
// bytes without the address and the calls around it. "" for nil.
func Brief(err error) string {
	var (
		errno  syscall.Errno
		page   *scraper.Error
		answer *vllm.Error
	)
	text := ""
	switch {
	case err == nil:
	case errors.As(err, &errno):
		text = errno.Error()
	case errors.Is(err, context.DeadlineExceeded):
		text = "no answer in time"
	case errors.As(err, &page):
		text = strings.TrimPrefix(page.Error(), "scrape: ")
	case errors.As(err, &answer) && answer.Status != 0:
		text = fmt.Sprintf("its API answers %d", answer.Status)
	default:
		for inner := err; inner != nil; inner = errors.Unwrap(inner) {
			text = inner.Error()
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), CauseLen)]
}
