package agent

import (
	"context"
	"fmt"
	"time"

	"penstock/agent/health"
	"penstock/reason"
	"penstock/scheduler"
)

// checkEvery is how often the engine is asked whether it is dead; a failed start
// asks at once. checkWithin bounds the call.
const checkEvery, checkWithin = time.Second, 500 * time.Millisecond

// check asks the engine whether it is dead. Its page would not say: it stands still,
// as that of an idle engine does. No answer says nothing; the page will be gone too.
func (a *Agent) check(ctx context.Context, _ time.Time) {
	call, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	if dead, err := a.engine.Dead(call); err == nil && a.core.setDead(dead) {
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
	if health.Usable(why) && (c.dead || !c.failed.IsZero() && c.bad != nil) {
		return reason.EngineDown
	}
	return why
}

// view is the scheduler's with that condition.
func (c *core) view(now time.Time) scheduler.View {
	v := c.sched.View(now)
	if v.Condition = c.condition(now); !health.Usable(v.Condition) {
		v.Gate = v.Condition
	}
	return v
}

// Health is what health checks are told now.
func (a *Agent) Health() health.Health {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	return a.core.healthNow()
}

func (c *core) healthNow() health.Health {
	h := c.health.Health(c.models)
	if !h.Ready {
		h.Cause = c.cause()
	}
	return h
}

// cause is why the engine is not ready, where more is known than the reason.
func (c *core) cause() string {
	switch seen := c.health.Condition(); {
	case seen == reason.Stuck:
		return fmt.Sprintf("%d running, %d waiting, nothing moves", c.last.Running, c.last.Waiting)
	case seen == reason.GPULost || seen == reason.GPUFault:
		return c.gpu.Detail[:min(len(c.gpu.Detail), health.CauseLen)]
	case seen == reason.EngineDown && c.dead:
		return "/health says that its process is dead"
	case c.bad != nil:
		return health.Brief(c.bad)
	case len(c.models) == 0:
		return health.Brief(c.unnamed)
	}
	return ""
}

// wants is what health checks are to be told, the models whose lanes are to be
// subscribed, nil for none, and for the log why the last scrape was bad.
func (c *core) wants() (health.Health, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health.Taking() {
		return c.healthNow(), c.models, c.bad
	}
	return c.healthNow(), nil, c.bad
}

// Listen calls f after every change of Health, in the agent's own goroutine: f must
// not wait.
func (a *Agent) Listen(f func()) {
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
