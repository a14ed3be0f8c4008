package agent

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
	"penstock/scheduler"
	"penstock/scraper"
	"penstock/vllm"
)

const (
	// upAfter good samples in a row, health says SERVING again: a flapping engine
	// must not flap its load balancer.
	upAfter = 3
	// checkEvery is how often the engine is asked whether it is dead; a failed start
	// asks at once. checkWithin bounds the call.
	checkEvery, checkWithin = time.Second, 500 * time.Millisecond
)

// usable reports whether an engine in condition c takes work at all. Being full
// is not a condition: Suspend is the brake then.
func usable(c reason.Reason) bool {
	switch c {
	case reason.Starting, reason.Blind, reason.Stuck, reason.Asleep, reason.Draining, reason.EngineDown, reason.GPULost, reason.GPUFault:
		return false
	}
	return true
}

// check asks the engine whether it is dead. Its page would not say: it stands still,
// as that of an idle engine does. No answer says nothing; the page will be gone too.
func (a *Agent) check(ctx context.Context, _ time.Time) {
	call, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	if dead, err := a.engine.dead(call); err == nil && a.core.setDead(dead) {
		if !dead && a.gpus != nil {
			a.gpus.EngineRestarted()
		}
		kick(a.changed)
	}
}

func (c *core) setDead(dead bool) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.dead != dead
	c.dead = dead
	return changed
}

// condition is the engine's: the scheduler's, unless it is known to be dead: it says
// so, or it answers neither a request nor the scraper.
func (c *core) condition(now time.Time) reason.Reason {
	why := c.sched.Condition(now)
	if bar, barred := c.barred(); barred && bar.Reason != reason.EngineDown && why != reason.Draining {
		return bar.Reason // before blind or stuck, which come of it
	}
	if usable(why) && (c.dead || !c.failed.IsZero() && c.bad != nil) {
		return reason.EngineDown
	}
	return why
}

// view is the scheduler's with that condition.
func (c *core) view(now time.Time) scheduler.View {
	v := c.sched.View(now)
	if v.Condition = c.condition(now); !usable(v.Condition) {
		v.Gate = v.Condition
	}
	return v
}

// pulse turns conditions over time into the two things that must not flap: what
// health checks are told, and whether lanes are subscribed. Not safe for concurrent
// use: core's mutex guards it.
type pulse struct {
	leaveAfter time.Duration // Config.LeaveAfter

	condition reason.Reason
	good      int       // good samples since the engine became usable
	bad       time.Time // since when it is not usable
	taking    bool      // lanes are subscribed
}

// sample counts a good sample and reports whether that made it serving; call look
// first.
func (h *pulse) sample() (up bool) {
	if !usable(h.condition) || h.good >= upAfter {
		return false
	}
	h.good++
	return h.good == upAfter
}

// look takes the condition at now and reports whether it changed.
func (h *pulse) look(now time.Time, c reason.Reason) (changed bool) {
	was := h.condition
	h.condition = c
	if usable(c) {
		h.taking = true
		return c != was
	}
	h.good = 0
	if usable(was) || was == reason.None {
		h.bad = now
	}
	if c == reason.Draining || h.leaveAfter == 0 || now.Sub(h.bad) > h.leaveAfter {
		h.taking = false
	}
	return c != was
}

// serving is what health checks are told.
func (h *pulse) serving() bool { return h.good >= upAfter && usable(h.condition) }

// Health is what an agent's health checks are told.
type Health struct {
	Ready  bool
	Reason reason.Reason // OK, or why not ready
	Models []string      // served now, sorted; empty while not known
	Since  time.Time     // not ready since then; zero = ready, or about to be
	Cause  string        // of a Reason, on one line of at most causeLen bytes without addresses; "" = not known
}

// Why is what a person is told who asks why it is not ready: "blind 12 s:
// connection refused". "" while ready.
func (h Health) Why(now time.Time) string {
	if h.Ready {
		return ""
	}
	return (&registry.Engine{State: h.Reason, Since: h.Since, Cause: h.Cause}).Why(now)
}

// equal is without what changes all the time.
func (h Health) equal(o Health) bool {
	return h.Ready == o.Ready && h.Reason == o.Reason && slices.Equal(h.Models, o.Models)
}

// Health is what health checks are told now.
func (a *Agent) Health() Health {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	return a.core.healthNow()
}

func (c *core) healthNow() Health {
	h := Health{Ready: c.health.serving() && len(c.models) > 0, Reason: reason.OK, Models: c.models}
	switch {
	case h.Ready:
	case usable(c.health.condition): // not good for long enough yet, or no models
		h.Reason = reason.Starting
	default:
		h.Reason, h.Since = c.health.condition, c.health.bad
	}
	if !h.Ready {
		h.Cause = c.cause()
	}
	return h
}

// cause is why the engine is not ready, where more is known than the reason.
func (c *core) cause() string {
	switch {
	case c.health.condition == reason.Stuck:
		return fmt.Sprintf("%d running, %d waiting, nothing moves", c.last.Running, c.last.Waiting)
	case c.health.condition == reason.GPULost || c.health.condition == reason.GPUFault:
		return c.gpu.Detail[:min(len(c.gpu.Detail), causeLen)]
	case c.health.condition == reason.EngineDown && c.dead:
		return "/health says that its process is dead"
	case c.bad != nil:
		return brief(c.bad)
	case len(c.models) == 0:
		return brief(c.unnamed)
	}
	return ""
}

// causeLen bounds a cause: probes and refusals show it on one line.
const causeLen = 120

// brief is what went wrong with a call to the engine, without the address and the
// calls around it.
func brief(err error) string {
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
	return text[:min(len(text), causeLen)]
}

// wants is what health checks are to be told, the models whose lanes are to be
// subscribed, nil for none, and for the log why the last scrape was bad.
func (c *core) wants() (Health, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health.taking {
		return c.healthNow(), c.models, c.bad
	}
	return c.healthNow(), nil, c.bad
}

// onHealth calls f after every change of Health, in the agent's own goroutine: f
// must not wait.
func (a *Agent) onHealth(f func()) {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	a.core.listen = append(a.core.listen, f)
}

// tell calls the listeners, without the mutex: they ask back.
func (c *core) tell() {
	c.mu.Lock()
	listen := c.listen
	c.mu.Unlock()
	for _, f := range listen {
		f()
	}
}
