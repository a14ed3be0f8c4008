package agent

import (
	"context"
	"time"

	"penstock/lane"
	"penstock/scheduler"
)

const (
	// lanePause is how long a head waits whose lane has as many running as it may. One
	// head of a lane is out at a time in memory, its width in the broker.
	lanePause = 100 * time.Millisecond
	// mostParked bounds the heads, one of a lane, that stay until one of their lane ends:
	// each holds a delivery.
	mostParked = 64
)

// laneCounts are how many requests of each lane hold a place in the ledger. core's
// mutex guards it.
type laneCounts struct {
	limit   func(k lane.Key) int       // most of a lane; 0 = no limit
	running map[lane.Key]int           // without zeros
	parked  map[lane.Key]chan struct{} // closed when one of the lane ends; at most mostParked
}

func newLaneCounts() laneCounts {
	return laneCounts{limit: func(lane.Key) int { return 0 }, running: map[lane.Key]int{}, parked: map[lane.Key]chan struct{}{}}
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
	if ended := c.parked[k]; n < 0 && ended != nil {
		delete(c.parked, k)
		close(ended)
	}
}

// parks lets the head of a lane that has no room wait until one of the lane ends, at
// most for hold. False: it did not, since another of the lane does, or many do.
func (c *core) parks(ctx context.Context, k lane.Key, hold time.Duration) bool {
	c.mu.Lock()
	ended := make(chan struct{})
	full := c.lanes.full(k, c.room.of(k))
	fits := c.lanes.parked[k] == nil && len(c.lanes.parked) < mostParked
	if full && fits {
		c.lanes.parked[k] = ended
	}
	c.mu.Unlock()
	if !full || !fits {
		return !full
	}
	wait := time.NewTimer(hold)
	defer wait.Stop()
	select {
	case <-ended:
		return true
	case <-wait.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lanes.parked[k] == ended {
		delete(c.lanes.parked, k)
	}
	return false
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
