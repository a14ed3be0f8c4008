package agent

import (
	"context"
	"slices"
	"time"

	"penstock/agent/engine"
	"penstock/agent/health"
	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

// serves takes what the engine says that it serves. One that hangs keeps what it said
// last.
func (a *Agent) serves(s engine.Served) {
	a.core.named(s.Err)
	if s.Err == nil && a.core.setModels(s.Models, s.Longest) {
		a.log.Info("models", "models", s.Models, "max_model_len", s.Longest)
		kick(a.changed)
	}
}

// accepts returns the lanes this agent takes while it serves models.
func (a *Agent) accepts(models []string) func(lane.Key) bool {
	return func(k lane.Key) bool {
		return (k.Pool == "" || k.Pool == a.cfg.Pool) && slices.Contains(models, k.Model)
	}
}

// announce puts the engine's entry into the directory: on every change and every
// RenewEvery.
func (a *Agent) announce(ctx context.Context, now time.Time) {
	e := a.core.entry()
	e.Node, e.GRPC, e.Pool, e.Seen = a.cfg.Node, a.cfg.GRPC, a.cfg.Pool, now
	_ = a.records.Once(ctx, "put engine", func(ctx context.Context) error { return a.deps.Directory.PutEngine(ctx, e) })
}

// entry is the core's part of the directory entry. Stale is a matter of
// milliseconds and none of the directory's.
func (c *core) entry() registry.Engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := registry.Engine{Models: c.models, MaxModelLen: c.longest, State: c.health.Condition()}
	if health.Usable(e.State) {
		e.State = reason.OK
	}
	if len(c.models) == 0 && e.State == reason.OK {
		e.State = reason.Starting
	}
	if e.State != reason.OK {
		h := c.healthNow()
		e.Since, e.Cause = h.Since, h.Cause
	}
	return e
}

// served is what the engine serves; empty while not known. Read only.
func (c *core) served() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.models
}

// named takes whether the engine said its models.
func (c *core) named(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unnamed = err
}

// setModels reports whether they differ from those before. names is not changed
// afterwards: readers share it.
func (c *core) setModels(names []string, longest int) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.models, names) && c.longest == longest {
		return false
	}
	c.models, c.longest = names, longest
	c.sched.SetMaxModelLen(longest)
	return true
}
