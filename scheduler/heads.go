package scheduler

import (
	"time"

	"penstock/reason"
	"penstock/scheduler/fair"
)

const (
	seenFor    = 6 * time.Second
	heldFor    = 500 * time.Millisecond // how long the ready room keeps a head
	minPause   = 50 * time.Millisecond
	maxPause   = 5 * time.Second
	minStarts  = 4.0  // starts per second that a pause reckons with at least: 25 heads come back within the longest pause
	maxStarts  = 50.0 // and at most: 128 heads then come back about 280 times a second together
	maxPasses  = 3    // times one head is passed on to a peer
	peerFresh  = time.Second
	statePause = time.Second // blind, stuck, asleep, draining
	startPause = 200 * time.Millisecond
	backMost   = time.Second            // a head is not waited for longer than this
	backLate   = 200 * time.Millisecond // and so much more than its pause
)

// head is a request that was told "not now".
type head struct {
	times
	who    fair.Tenant
	tier   int
	cost   int64         // what its start will be charged
	ahead  int64         // what the starts of its tenant's heads before it will, as of its last sight
	slo    time.Duration // its first token is in time until here
	seen   time.Duration
	back   time.Duration // it is expected back by then
	room   bool          // what it waits for is room
	held   bool
	passes uint8
}

// times tell heads apart that are alike otherwise.
type times struct {
	deadline, opened time.Duration
	hash             uint64
}

// heads remembers who waits, by last sight. When it is full the one not seen for
// longest makes room: ranks are then too small, and the longest pause bounds them.
type heads struct {
	list [128]head
	n    int
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

// turn is a head's place in the order: the lesser starts first.
type turn struct {
	times
	class  int // see State.class; 0 is a head older than its tier's age
	late   bool
	tokens int64 // its tenant's counter
}

func (a *turn) before(b *turn) bool {
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

func (h *times) sooner(o *times) bool {
	switch {
	case h.deadline != o.deadline:
		return h.deadline < o.deadline
	case h.opened != o.opened:
		return h.opened < o.opened
	}
	return h.hash < o.hash
}

// stoppedBy reports whether a head may not start because b, before it, cannot: that is
// of an earlier tier, or in time, or its tenant has had so much less that small prompts
// must not pass it any more.
func (a *turn) stoppedBy(b *turn, slack int64) bool {
	return a.class != b.class || a.late && !b.late || a.tokens-b.tokens > slack
}

// slack is how far behind a tenant must be for its head to keep others out.
func (s *State) slack() int64 {
	if s.sample.KVTokens == 0 {
		return 1 << 62
	}
	return int64(creditShare * float64(s.sample.KVTokens))
}

// turn is a head's place in the order while a first token takes prediction.
func (s *State) turn(t, prediction time.Duration, h *head) turn {
	c := &s.tiers[h.tier]
	if c.aged(t, h.opened) {
		return turn{times: h.times} // the oldest of its kind; nobody is late who goes first
	}
	return turn{h.times, s.class(h.tier), t+prediction > h.slo, h.ahead + c.fair.Tokens(h.who)}
}

// head is what is remembered of a request.
func (s *State) head(t time.Duration, r *Request) head {
	h := head{times: times{maxDeadline, s.opened(t, r), r.Hash}, tier: s.tier(r), cost: fair.Cost(r.prompt(), r.expected())}
	h.who = s.tiers[h.tier].fair.Of(r.Tenant)
	if !r.Deadline.IsZero() {
		h.deadline = s.since(r.Deadline)
	}
	h.slo = h.opened + s.slo(r)
	return h
}

// opened is when a request came; now, where it does not say.
func (s *State) opened(t time.Duration, r *Request) time.Duration {
	if r.Opened.IsZero() {
		return t
	}
	return s.since(r.Opened)
}

// maxDeadline is that of a head without one.
const maxDeadline = time.Duration(1<<63 - 1)

// note records that a head was seen now. Its rank, from 1, is its place in the order
// of Pick among those seen in the last 6 s; ahead says whether one in time is before
// it.
func (s *State) note(t time.Duration, r *Request) (e *head, rank int, ahead bool) {
	h, x := &s.heads, s.head(t, r)
	own, oldest := -1, 0
	mates := false
	for i := 0; i < h.n; i++ {
		e := &h.list[i]
		switch {
		case e.hash == x.hash:
			own, x.passes = i, e.passes
		case t-e.seen > seenFor:
			s.tiers[e.tier].fair.Left(e.who, int64(e.seen))
			h.remove(i)
			i--
			continue
		case e.who == x.who && e.tier == x.tier:
			mates = true
			if e.sooner(&x.times) {
				x.ahead += e.cost
			}
		}
		if e.seen < h.list[oldest].seen {
			oldest = i
		}
	}
	if own < 0 && !mates {
		s.join(t, &x)
	}
	rank, ahead = s.rank(t, &x)
	switch {
	case own >= 0:
	case h.n < len(h.list):
		own = h.n
		h.n++
	default:
		own = oldest
		e := &h.list[own]
		s.tiers[e.tier].fair.Left(e.who, int64(t))
	}
	x.seen = t
	h.list[own] = x
	return &h.list[own], rank, ahead
}

// rank is a head's place among all others known. It does turn.before's work in place:
// Decide has a microsecond.
func (s *State) rank(t time.Duration, x *head) (rank int, ahead bool) {
	prediction := s.speed.predict(s.pendTokens)
	own := s.turn(t, prediction, x)
	rank = 1
	for i := range s.heads.list[:s.heads.n] {
		e := &s.heads.list[i]
		late, before := t+prediction > e.slo, false
		if c := &s.tiers[e.tier]; own.class == 0 || e.tier != x.tier || c.aged(t, e.opened) {
			o := s.turn(t, prediction, e)
			before = o.before(&own)
		} else if late != own.late {
			before = own.late
		} else if e.who == x.who {
			before = e.sooner(&x.times)
		} else {
			before = e.ahead+c.fair.Tokens(e.who) < own.tokens
		}
		if before && e.hash != x.hash {
			rank++
			ahead = ahead || !late
		}
	}
	return rank, ahead
}

// creditShare is the part of the KV tokens that a tenant who comes back may be behind
// the others. The law's own gap is far below VTC's bound, four times the KV tokens,
// because what a start will cost is charged at once; this is taken out of the rest.
const creditShare = 0.5

// join lifts the counter of a tenant none of whose heads is known to wait.
func (s *State) join(t time.Duration, x *head) {
	counters := s.tiers[x.tier].fair
	least, waiting := counters.Last(), false
	for i := range s.heads.list[:s.heads.n] {
		if e := &s.heads.list[i]; e.tier == x.tier && e.who != x.who && t-e.seen <= seenFor {
			if n := counters.Tokens(e.who); !waiting || n < least {
				least, waiting = n, true
			}
		}
	}
	counters.Lift(x.who, int64(x.opened), least-int64(creditShare*float64(s.sample.KVTokens)))
}

// forget takes a head out that starts or will never run.
func (s *State) forget(t time.Duration, r *Request) {
	if i := s.heads.find(r.Hash); i >= 0 {
		e := &s.heads.list[i]
		s.tiers[e.tier].fair.Left(e.who, int64(t))
		s.heads.remove(i)
	}
}

// yield says for whom a head that may start waits: for heads that wait for room and are
// expected back, of a tier before its own or of a tenant far behind its own; a late one
// also for heads of its tier in the ready room that are in time.
func (s *State) yield(t time.Duration, r *Request, late bool) reason.Reason {
	tier, prediction := s.tier(r), s.speed.predict(s.pendTokens)
	c := &s.tiers[tier]
	if c.aged(t, s.opened(t, r)) {
		return reason.OK
	}
	class := s.class(tier)
	behind := c.fair.Tokens(c.fair.Of(r.Tenant)) - s.slack()
	for i := range s.heads.list[:s.heads.n] {
		e := &s.heads.list[i]
		inTime := t+prediction <= e.slo
		switch {
		case e.hash == r.Hash:
		case e.tier != tier:
			if e.room && t <= e.back && s.class(e.tier) < class {
				return reason.TierTurn
			}
		case late && inTime && e.held && t-e.seen <= heldFor:
			return reason.Late
		case e.room && t <= e.back && (late || inTime) && c.fair.Tokens(e.who) < behind:
			return reason.TenantTurn
		}
	}
	return reason.OK
}

// mix spreads a hash and a number over 64 bits (splitmix64's finaliser).
func mix(hash, n uint64) uint64 {
	x := hash + (n+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// draw is a number in 0..1 from a hash and a number.
func draw(hash, n uint64) float64 { return float64(mix(hash, n)>>11) / (1 << 53) }
