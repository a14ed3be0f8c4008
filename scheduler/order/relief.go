package order

import "time"

// Relief lets a tier with a long backlog have more of an engine that the tiers before
// it do not need: its ceiling doubles, and gateways grant its requests a longer wait.
const (
	reliefIdle  = 0.30            // share of the KV tokens that the tiers before it must leave
	reliefAfter = 5 * time.Second // for so long, with none of their heads waiting for room
	reliefFrom  = 10_000          // requests in its backlog
	reliefUntil = 5_000           // from which on it ends
	reliefEvery = 50 * time.Millisecond
)

// relief is a tier's part in it.
type relief struct {
	backlog int // requests that wait in the lanes of all agents
	on      bool
	base    int           // in flight when it began
	quiet   time.Duration // since when the tiers before it leave room; meaningful with left
	left    bool
}

// SetBacklog tells how many requests of a tier wait for the engine's models, in all
// lanes. The caller reads it about once a second.
func (q *Queue) SetBacklog(tier, requests int) {
	if tier >= 0 && tier < len(q.tiers) {
		q.tiers[tier].relief.backlog = requests
	}
}

// Relieve opens and closes relief. Call it often.
func (q *Queue) Relieve(t time.Duration) {
	if len(q.tiers) == 1 || t-q.relieved < reliefEvery {
		return
	}
	q.relieved = t
	before, k := 0, float64(q.kv)    // tokens of the tiers before
	waits, old := MostTiers, uint(0) // the first tier with a head that waits for room; tiers with an old one
	for i := range q.heads.list[:q.heads.n] {
		e := &q.heads.list[i]
		if e.Room && t <= e.Back {
			waits = min(waits, e.tier)
		}
		if age := q.tiers[e.tier].Age; age > 0 && t-e.opened > age && t-e.seen <= seenFor {
			old |= 1 << e.tier
		}
	}
	for i := range q.tiers {
		c := &q.tiers[i]
		left := i > 0 && k > 0 && waits >= i && (c.relief.on || float64(before) <= (1-reliefIdle)*k)
		if left && !c.relief.left {
			c.relief.quiet = t
		}
		c.relief.left = left
		switch need := c.relief.backlog > reliefFrom || old>>i&1 == 1; {
		case !left, !need && c.relief.backlog < reliefUntil:
			c.relief.on = false
		case need && !c.relief.on && t-c.relief.quiet >= reliefAfter:
			c.relief.on, c.relief.base = true, c.inflight
		}
		before += c.tokens
	}
}

// full reports whether n tokens more would pass a tier's ceiling. One request may
// always run, and under relief one more than did when it began.
func (c *tier) full(n, k int) bool {
	least, ceiling := 1, c.Ceiling
	if c.relief.on {
		least, ceiling = c.relief.base+1, min(2*ceiling, 1)
	}
	return ceiling < 1 && k > 0 && c.inflight >= least && float64(c.tokens+n) > ceiling*float64(k)
}

// Relieving has a bit for each tier that has relief, 1 << its place.
func (q *Queue) Relieving() (bits uint16) {
	for i := range q.tiers {
		if q.tiers[i].relief.on {
			bits |= 1 << i
		}
	}
	return bits
}
