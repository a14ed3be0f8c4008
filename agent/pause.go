package agent

import (
	"errors"
	"time"
)

// errEnding is Resume's answer to an agent that shuts down.
var errEnding = errors.New("it is shutting down: a drain for good is not taken back")

// Pause makes the agent take no more work until Resume: health says NOT_SERVING,
// lanes are given up, held heads go back. What runs goes on for as long as it needs.
// It returns how many requests that are.
func (a *Agent) Pause() int {
	a.core.mu.Lock()
	running := a.core.pause(time.Now())
	a.core.mu.Unlock()
	kick(a.changed)
	a.log.Info("paused", "running", running)
	return running
}

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
