package agent

import (
	"context"
	"errors"
	"time"

	"penstock/agent/attempt"
	"penstock/reason"
)

// cutWithin bounds how long requests cut at the end of a drain may take to settle
// their records.
const cutWithin = 2 * time.Second

// drain ends the agent's work in order: health says NOT_SERVING and the lanes are
// given up, held heads go back, what runs goes on for Grace, the rest is cut and
// settled by the table of outcomes. It returns when nothing runs, or soon after
// the cut.
func (a *Agent) drain(ctx context.Context) {
	running := a.core.pause(time.Now(), true)
	kick(a.changed)
	a.log.Info("draining", "running", running, "grace", a.cfg.Grace)
	if !a.idle(ctx, a.cfg.Grace) {
		left := 0
		a.core.each(func(r *run) {
			left++
			r.Cancel(attempt.ErrDrained)
		})
		a.log.Warn("drain cut running requests", "running", left)
		if !a.idle(ctx, cutWithin) {
			a.log.Warn("cut requests are not settled; their records expire", "within", cutWithin)
			return
		}
	}
	a.log.Info("drained")
}

// idle waits until nothing runs, at most d.
func (a *Agent) idle(ctx context.Context, d time.Duration) bool {
	_, ok := within(ctx, d, a.core.idle)
	return ok
}

// Pause makes the agent take no more work until Resume: health says NOT_SERVING,
// lanes are given up, held heads go back. What runs goes on for as long as it needs.
// It returns how many requests that are.
func (a *Agent) Pause() int {
	running := a.core.pause(time.Now(), false)
	kick(a.changed)
	a.log.Info("paused", "running", running)
	return running
}

// errEnding is Resume's answer to an agent that shuts down.
var errEnding = errors.New("it is shutting down: a drain for good is not taken back")

// Resume takes a Pause back; false: there was none. Health says SERVING after three
// good samples, as after a fault. An error: the agent shuts down.
func (a *Agent) Resume() (was bool, err error) {
	was, err = a.core.resume(time.Now())
	if was {
		kick(a.changed)
		a.log.Info("resumed")
	}
	return was, err
}

// pause suspends every held head, lets no other start and returns how many run. idle
// closes when the last of them has ended. ending: for good.
func (c *core) pause(now time.Time, ending bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining, c.ending = true, c.ending || ending
	c.sched.SetDraining(true)
	c.health.Look(now, reason.Draining)
	c.room.Empty(now, reason.Draining)
	c.settleDrain()
	return len(c.runs)
}

// settleDrain ends the drain once nothing runs. The caller has the mutex.
func (c *core) settleDrain() {
	if c.draining && len(c.runs) == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

func (c *core) resume(now time.Time) (was bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ending:
		return false, errEnding
	case !c.draining:
		return false, nil
	}
	c.draining = false
	c.idle = make(chan struct{})
	c.sched.SetDraining(false)
	c.health.Look(now, c.condition(now))
	return true, nil
}
