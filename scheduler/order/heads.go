package order

import (
	"math"
	"time"

	"penstock/reason"
	"penstock/scheduler/fair"
)

const (
	seenFor = 6 * time.Second
	heldFor = 500 * time.Millisecond // how long the ready room keeps a head
)

// Waiting is what is remembered of a head that was told "not now".
type Waiting struct {
	times
	who   fair.Tenant
	tier  int
	cost  int64         // what its start will be charged
	ahead int64         // what the starts of its tenant's heads before it will, as of its last sight
	slo   time.Duration // its first token is in time until here
	seen  time.Duration

	Back   time.Duration // it is expected back by then
	Room   bool          // what it waits for is room
	Held   bool          // in the ready room
	Passes uint8         // times it was passed on to a peer
}

// times tell heads apart that are alike otherwise.
type times struct {
	deadline, opened time.Duration
	hash             uint64
}

// heads remembers who waits, by last sight. When it is full the one not seen for
// longest makes room: ranks are then too small, and the longest pause bounds them.
type heads struct {
	list  [128]Waiting
	n     int
	since time.Duration // none was seen last before
}

// find is the place of a head, or -1.
func (h *heads) find(hash uint64) int {
	for i := range h.list[:h.n] {
		if h.list[i].hash == hash {
			return i
		}
	}
	return -1
}

// remove forgets head i.
func (h *heads) remove(i int) {
	h.n--
	h.list[i] = h.list[h.n]
}

func (h *times) sooner(o *times) bool {
	switch {
	case h.deadline != o.deadline:
		return h.deadline < o.deadline
	case h.opened != o.opened:
		return h.opened < o.opened
	}
	return h.hash < o.hash
}

// waiting is what is remembered of a head.
func (q *Queue) waiting(h *Head) Waiting {
	tier := q.place(h.Tier)
	return Waiting{
		times: times{h.Deadline, h.Opened, h.Hash}, tier: tier, who: q.tiers[tier].fair.Of(h.Tenant),
		cost: fair.Cost(h.Prompt, h.Output), slo: h.Opened + h.SLO,
	}
}

// sweep forgets heads that were not seen for long, but for one.
func (q *Queue) sweep(t time.Duration, but uint64) {
	h := &q.heads
	h.since = t
	for i := 0; i < h.n; i++ {
		e := &h.list[i]
		if t-e.seen > seenFor && e.hash != but {
			q.tiers[e.tier].fair.Left(e.who, int64(e.seen))
			h.remove(i)
			i--
			continue
		}
		h.since = min(h.since, e.seen)
	}
}

// Note records that a head was seen now, while a first token takes prediction. Its rank,
// from 1, is its place in the order among those seen in the last 6 s; ahead says whether
// one in time is before it. What is remembered is good until the next call.
func (q *Queue) Note(t, prediction time.Duration, head *Head) (w *Waiting, rank int, ahead bool) {
	h, x := &q.heads, q.waiting(head)
	if t-h.since > seenFor {
		q.sweep(t, x.hash)
	}
	place, mates := h.mates(&x)
	if place >= 0 {
		x.Passes = h.list[place].Passes
		h.list[place] = x // as it is now it is not before itself
	} else if !mates {
		q.join(t, &x)
	}
	rank, ahead = q.rank(t, prediction, &x)
	switch {
	case place >= 0:
	case h.n < len(h.list):
		place = h.n
		h.n++
	default:
		place = h.oldest()
		e := &h.list[place]
		q.tiers[e.tier].fair.Left(e.who, int64(t))
	}
	x.seen = t
	h.list[place] = x
	return &h.list[place], rank, ahead
}

// mates finds a head, -1 for one that is not known, and what is before it of its tenant.
func (h *heads) mates(x *Waiting) (place int, mates bool) {
	place, hash, who, tier, ahead := -1, x.hash, x.who, x.tier, int64(0)
	list := h.list[:h.n]
	for i := range list {
		switch e := &list[i]; {
		case e.hash == hash:
			place = i
		case e.who == who && e.tier == tier:
			mates = true
			if e.sooner(&x.times) {
				ahead += e.cost
			}
		}
	}
	x.ahead = ahead
	return place, mates
}

// oldest is the head not seen for longest.
func (h *heads) oldest() (oldest int) {
	for i := range h.list[:h.n] {
		if h.list[i].seen < h.list[oldest].seen {
			oldest = i
		}
	}
	return oldest
}

// rank is a head's place among all others known. It does Turn.Before's work in place for
// those of its tier, without a call: a decision has a microsecond.
func (q *Queue) rank(t, prediction time.Duration, x *Waiting) (rank int, ahead bool) {
	own, c := q.turn(t, prediction, x), &q.tiers[x.tier]
	young := time.Duration(math.MinInt64) // who came since then does not go first for its age
	switch {
	case own.class == 0:
		young = math.MaxInt64
	case c.Age > 0 && c.old == 0:
		young = t - c.Age
	}
	list, in, others := q.heads.list[:q.heads.n], t+prediction, 0
	early, alike := 0, 0 // before it: in time where it is late, as late as it is
	for i := range list {
		switch e := &list[i]; {
		case e.tier != x.tier || e.opened < young:
			others++
		case in > e.slo != own.late:
			if own.late {
				early++
			}
		case e.who == x.who:
			if e.sooner(&x.times) {
				alike++
			}
		case e.ahead+c.fair.Tokens(e.who) < own.tokens:
			alike++
		}
	}
	rank, ahead = 1+early+alike, early > 0 || alike > 0 && !own.late
	for i := range list {
		if others == 0 {
			break
		}
		if e := &list[i]; e.tier != x.tier || e.opened < young {
			others--
			if o := q.turn(t, prediction, e); o.Before(&own) {
				rank++
				ahead = ahead || in <= e.slo
			}
		}
	}
	return rank, ahead
}

// creditShare is the part of the KV tokens that a tenant who comes back may be behind
// the others. The law's own gap is far below VTC's bound, four times the KV tokens,
// because what a start will cost is charged at once; this is taken out of the rest.
const creditShare = 0.5

// join lifts the counter of a tenant none of whose heads is known to wait.
func (q *Queue) join(t time.Duration, x *Waiting) {
	counters := q.tiers[x.tier].fair
	least, waiting := counters.Last(), false
	for i := range q.heads.list[:q.heads.n] {
		if e := &q.heads.list[i]; e.tier == x.tier && e.who != x.who && t-e.seen <= seenFor {
			if n := counters.Tokens(e.who); !waiting || n < least {
				least, waiting = n, true
			}
		}
	}
	counters.Lift(x.who, int64(x.opened), least-int64(creditShare*float64(q.kv)))
}

// Forget takes a head out that starts or will never run.
func (q *Queue) Forget(t time.Duration, hash uint64) {
	if i := q.heads.find(hash); i >= 0 {
		e := &q.heads.list[i]
		q.tiers[e.tier].fair.Left(e.who, int64(t))
		q.heads.remove(i)
	}
}

// Yield says for whom a head that may start waits: for heads that wait for room and are
// expected back, of a tier before its own or of a tenant far behind its own; a late one
// also for heads of its tier in the ready room that are in time.
func (q *Queue) Yield(t, prediction time.Duration, h *Head, late bool) reason.Reason {
	tier := q.place(h.Tier)
	c := &q.tiers[tier]
	if c.aged(t, h.Opened) {
		return reason.OK
	}
	class := q.class(tier)
	behind := c.fair.Tokens(c.fair.Of(h.Tenant)) - q.slack()
	for i := range q.heads.list[:q.heads.n] {
		e := &q.heads.list[i]
		inTime := t+prediction <= e.slo
		switch {
		case e.hash == h.Hash:
		case e.tier != tier:
			if e.Room && t <= e.Back && q.class(e.tier) < class {
				return reason.TierTurn
			}
		case late && inTime && e.Held && t-e.seen <= heldFor:
			return reason.Late
		case e.Room && t <= e.Back && (late || inTime) && c.fair.Tokens(e.who) < behind:
			return reason.TenantTurn
		}
	}
	return reason.OK
}
