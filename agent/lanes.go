package agent

import (
	"time"

	"penstock/lane"
	"penstock/scheduler"
)

// lanePause is how long a head waits whose lane has as many running as it may. One head
// of a lane is out at a time in memory, its width in the broker.
const lanePause = 100 * time.Millisecond

// laneCounts are how many requests of each lane hold a place in the ledger. core's
// mutex guards it.
type laneCounts struct {
	limit   func(k lane.Key) int // most of a lane; 0 = no limit
	running map[lane.Key]int     // without zeros
}

func newLaneCounts() laneCounts {
	return laneCounts{limit: func(lane.Key) int { return 0 }, running: map[lane.Key]int{}}
}

// full reports whether nothing more of a lane may start, of which so many are about to.
func (c *laneCounts) full(k lane.Key, soon int) bool {
	limit := c.limit(k)
	return limit > 0 && c.running[k]+soon >= limit
}

func (c *laneCounts) add(k lane.Key, n int) {
	if c.running[k] += n; c.running[k] <= 0 {
		delete(c.running, k)
	}
}

// SetTiers makes the engine's share of each tier as in tiers, which
// scheduler.ValidateTiers has passed. What runs goes on. Any goroutine may call it.
func (a *Agent) SetTiers(tiers []scheduler.Tier) { a.core.setTiers(time.Now(), tiers) }

func (c *core) setTiers(now time.Time, tiers []scheduler.Tier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tiers = tiers
	c.sched.SetTiers(tiers)
	for i := range c.room.reqs {
		c.room.reqs[i].Tier = scheduler.Rank(tiers, c.room.heads[i].lane.Tier)
	}
	c.fill(now)
}

// tiered reports whether there are several tiers.
func (c *core) tiered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tiers) > 1
}
