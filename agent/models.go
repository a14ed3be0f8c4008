package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"penstock/agent/attempt"
	"penstock/agent/health"
	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
	"penstock/scheduler"
	"penstock/vllm"
)

const (
	// modelsEvery is how often the engine is asked what it serves: adapters come and
	// go while it runs.
	modelsEvery = 10 * time.Second
	// modelsAgain is how soon it is asked again while it has never answered, and
	// askWithin bounds one call.
	modelsAgain, askWithin = time.Second, 2 * time.Second
)

// errNoModels is an engine that is up and serves nothing.
var errNoModels = errors.New("it names no model")

// upstream is the vLLM client as the agent uses it: a seam for tests.
type upstream struct {
	models func(context.Context) ([]vllm.Model, error)
	dead   func(context.Context) (bool, error)
	probe  func(ctx context.Context, model string) error
	attempt.Engine
}

func newUpstream(c *vllm.Client) upstream {
	return upstream{models: c.Models, dead: c.Dead, probe: c.ProbeUsage, Engine: attempt.NewEngine(c)}
}

// askModels learns what the engine serves: at start, every modelsEvery and when
// the engine came back. Until it answers, the agent takes nothing.
func (a *Agent) askModels(ctx context.Context) error {
	for {
		wait := modelsEvery
		if !a.askOnce(ctx) {
			wait = modelsAgain
		}
		select {
		case <-time.After(wait):
		case <-a.ask:
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *Agent) askOnce(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, askWithin)
	list, err := a.engine.models(call)
	cancel()
	if err == nil && len(list) == 0 {
		err = errNoModels
	}
	a.core.named(err)
	if err != nil {
		a.log.Debug("engine did not say its models", "err", err)
		return len(a.core.served()) > 0 // an engine that hangs keeps the names it had
	}
	names, longest := make([]string, 0, len(list)), 0
	for _, m := range list {
		names = append(names, m.ID)
		longest = max(longest, m.MaxModelLen)
	}
	slices.Sort(names)
	// Once in the engine's life, before the first delivery: does it report usage per
	// chunk? After that it returns at once.
	call, cancel = context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := a.engine.probe(call, list[0].ID); err != nil {
		a.log.Debug("engine did not say whether it reports usage", "err", err)
	}
	if a.core.setModels(slices.Compact(names), longest) {
		a.log.Info("models", "models", names, "max_model_len", longest)
		kick(a.changed)
	}
	return true
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

// setBacklog adds up what waits for the engine's models, by tier.
func (c *core) setBacklog(rows []registry.Backlog, tiers []scheduler.Tier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var waiting [scheduler.MostTiers]int
	for i := range rows {
		if slices.Contains(c.models, rows[i].Model) {
			waiting[scheduler.Rank(tiers, rows[i].Tier)] += rows[i].Requests
		}
	}
	for i := range tiers {
		c.sched.SetBacklog(i, waiting[i])
	}
}
