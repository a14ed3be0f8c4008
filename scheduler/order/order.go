// Package order says who goes first to an engine: tiers with their shares and what they
// leave each other, inside a tier the tenants' counters (package fair), then deadlines.
// It is pure, and not safe for concurrent use; only tenants that are new to a tier
// allocate. Times are offsets from a start of the caller's.
package order

import (
	"time"

	"penstock/scheduler/fair"
)

// Queue is who waits for one engine and what each tier and tenant has of it.
type Queue struct {
	tiers      []tier
	heads      heads
	kv         int // the engine's KV tokens; 0 = it does not say
	relieved   time.Duration
	ttft, tpot time.Duration // limits of tiers that have none of their own
}

// New makes the queue of an engine nobody waits for, with tiers that ValidateTiers has
// passed; none = one, "default".
func New(tiers []Tier, ttft, tpot time.Duration) Queue {
	return Queue{tiers: newTiers(tiers, ttft, tpot), ttft: ttft, tpot: tpot}
}

// SetKVTokens tells how many KV tokens the engine has; 0 = it does not say.
func (q *Queue) SetKVTokens(k int) { q.kv = k }

// Head is a request as the order sees it.
type Head struct {
	Hash     uint64
	Tenant   uint64
	Tier     int           // its place; one that is not there counts as the last
	Prompt   int           // tokens
	Output   int           // tokens expected
	Opened   time.Duration // when it came
	Deadline time.Duration // Never = none
	SLO      time.Duration // from Opened, for its first token
}

// Never is the deadline of a head without one.
const Never = time.Duration(1<<63 - 1)

// Turn is a head's place in the order.
type Turn struct {
	times
	class  int // see Queue.class; 0 is a head older than its tier's age
	late   bool
	tokens int64 // its tenant's counter
}

// Before reports whether a head starts before another.
func (a *Turn) Before(b *Turn) bool {
	switch {
	case a.class != b.class:
		return a.class < b.class
	case a.late != b.late:
		return b.late
	case a.tokens != b.tokens:
		return a.tokens < b.tokens
	}
	return a.sooner(&b.times)
}

// Aged reports whether it goes first for its age.
func (a *Turn) Aged() bool { return a.class == 0 }

// StoppedBy reports whether a head may not start because b, before it, cannot: that is
// of an earlier tier, or in time, or its tenant has had so much less that small prompts
// must not pass it any more.
func (q *Queue) StoppedBy(a, b *Turn) bool {
	return a.class != b.class || a.late && !b.late || a.tokens-b.tokens > q.slack()
}

// slack is how far behind a tenant must be for its head to keep others out.
func (q *Queue) slack() int64 {
	if q.kv == 0 {
		return 1 << 62
	}
	return int64(creditShare * float64(q.kv))
}

// Turn is a head's place while a first token takes prediction.
func (q *Queue) Turn(t, prediction time.Duration, h *Head) Turn {
	w := q.waiting(h)
	return q.turn(t, prediction, &w)
}

func (q *Queue) turn(t, prediction time.Duration, w *Waiting) Turn {
	c := &q.tiers[w.tier]
	if c.aged(t, w.opened) {
		return Turn{times: w.times} // the oldest of its kind; nobody is late who goes first
	}
	return Turn{w.times, q.class(w.tier), t+prediction > w.slo, w.ahead + c.fair.Tokens(w.who)}
}

// class is a tier's place in the order: tiers below their floor, then all, by rank.
func (q *Queue) class(i int) int {
	c := &q.tiers[i]
	if c.Floor > 0 && float64(c.tokens) < c.Floor*float64(q.kv) {
		return 1 + i
	}
	return 1 + MostTiers + i
}

// Bill is what a request in flight is to its tier and its tenant.
type Bill struct {
	who     fair.Tenant
	tier    int
	old     bool  // started for its age
	tokens  int   // counted in its tier
	charged int64 // to its tenant
}

// Enter takes a head that starts into the books: what it is expected to cost is charged
// at once, so that the next of its tenant waits for the others'.
func (q *Queue) Enter(t time.Duration, h *Head) Bill {
	w := q.waiting(h)
	if q.heads.find(h.Hash) < 0 {
		q.join(t, &w)
		q.tiers[w.tier].fair.Left(w.who, int64(t))
	}
	q.Forget(t, h.Hash)
	c := &q.tiers[w.tier]
	b := Bill{who: w.who, tier: w.tier, old: c.aged(t, w.opened), tokens: h.Prompt + h.Output, charged: w.cost}
	c.fair.Charge(b.who, b.charged)
	c.fair.Run(b.who, 1)
	c.started = t
	c.inflight++
	c.tokens += b.tokens
	if b.old {
		c.old++
	}
	return b
}

// Grow keeps the books up to a request that has had so much and is expected to have so
// much output, or more.
func (q *Queue) Grow(b *Bill, prompt, out, expected int) {
	c := &q.tiers[b.tier]
	if d := prompt + max(out, expected) - b.tokens; d != 0 {
		b.tokens += d
		c.tokens += d
	}
	if d := fair.Cost(prompt, out) - b.charged; d > 0 {
		b.charged += d
		c.fair.Charge(b.who, d)
	}
}

// Exit settles a request with what it had.
func (q *Queue) Exit(b *Bill, prompt, out int) {
	c := &q.tiers[b.tier]
	c.fair.Run(b.who, -1)
	c.inflight--
	c.tokens -= b.tokens
	if b.old {
		c.old--
	}
	c.fair.Charge(b.who, fair.Cost(prompt, out)-b.charged)
}

// Held is a tier's requests in flight, and the tokens they hold and are expected to.
func (q *Queue) Held(tier int) (requests, tokens int) {
	c := &q.tiers[q.place(tier)]
	return c.inflight, c.tokens
}
