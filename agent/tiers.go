package agent

import (
	"context"
	"slices"
	"time"

	"penstock/registry"
	"penstock/scheduler"
)

// SetTiers makes the engine's share of each tier as in tiers, which
// scheduler.ValidateTiers has passed. What runs goes on. Any goroutine may call it.
func (a *Agent) SetTiers(tiers []scheduler.Tier) { a.core.setTiers(time.Now(), tiers) }

func (c *core) setTiers(now time.Time, tiers []scheduler.Tier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tiers = tiers
	c.sched.SetTiers(tiers)
	c.room.Rank(tiers)
	c.room.Fill(now)
}

// readBacklog tells the scheduler how much of each tier waits for the engine's models.
func (a *Agent) readBacklog(_ context.Context, now time.Time) {
	if a.core.tiered() {
		a.core.setBacklog(a.deps.Backlog(now))
	}
}

// tiered reports whether there are several tiers.
func (c *core) tiered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tiers) > 1
}

// setBacklog adds up what waits for the engine's models, by tier.
func (c *core) setBacklog(rows []registry.Backlog) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var waiting [scheduler.MostTiers]int
	for i := range rows {
		if slices.Contains(c.models, rows[i].Model) {
			waiting[scheduler.Rank(c.tiers, rows[i].Tier)] += rows[i].Requests
		}
	}
	for i := range c.tiers {
		c.sched.SetBacklog(i, waiting[i])
	}
}
