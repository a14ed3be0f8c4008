package quota

import (
	"math"
	"time"
)

// sweepMost bounds the buckets one Sweep looks at, about 1 ms.
const sweepMost = 10_000

// sliceScope keeps slices' names apart from those of limits.
const sliceScope = "slice"

// id names a bucket. Limits that count otherwise are other buckets, so that a changed
// policy does not read one as the other; a changed rate is taken over as it is.
type id struct {
	scope  string
	name   string
	unit   Unit
	window int64 // length in ms; 0 = leaky
}

func (l *Limit) id() id {
	k := id{scope: l.Scope, name: l.Bucket, unit: l.Unit}
	if l.Window {
		k.window = l.Per.Milliseconds()
	}
	return k
}

func (l *Limit) slice() id { return id{scope: sliceScope, name: l.Slice, unit: l.Unit} }

// bucket is one level. Of a window it is what was taken in the window that began at
// start, and nothing else is used.
type bucket struct {
	at       int64 // ms, when the level was that
	level    float64
	promised float64 // to those who sleep until there is room, since the current turn began
	earlier  float64 // in the turn before: they come in this one, or not at all
	rate     float64 // per ms
	start    int64
}

// turn is the stretch of time in which a promise is made; it is forgotten after the
// next one, since nobody sleeps longer than one.
const turn = int64(MaxWait / time.Millisecond)

// forgotten is when a leaky bucket is as if it had never been, at the rate it was last
// used with.
func (b *bucket) forgotten() int64 {
	return b.at + max(Idle.Milliseconds(), int64(math.Ceil(min(b.level/b.rate, 1e12))))
}

// now is the bucket as it is at that time, leaking at rate.
func (b bucket) now(at int64, rate float64) bucket {
	if b.rate > 0 && at >= b.forgotten() {
		b = bucket{at: at}
	}
	leaked := rate * float64(max(at-b.at, 0))
	switch at/turn - b.at/turn {
	case 0:
	case 1:
		b.promised, b.earlier = 0, b.promised
	default:
		b.promised, b.earlier = 0, 0
	}
	return bucket{at: at, level: max(b.level-leaked, 0), promised: b.promised, earlier: b.earlier, rate: rate}
}

// keep is a promise that was kept.
func (b *bucket) keep(cost float64) {
	old := min(b.earlier, cost)
	b.earlier -= old
	b.promised = max(b.promised-(cost-old), 0)
}

// Book is all buckets. Make it with New.
type Book struct {
	buckets map[id]*bucket
	checks  []check // when each bucket is looked at next, in order
}

type check struct {
	id
	at int64
}

// New makes a book with nothing taken.
func New() *Book { return &Book{buckets: map[id]*bucket{}} }

// Len is how many buckets are remembered.
func (k *Book) Len() int { return len(k.buckets) }

func (k *Book) get(name id) bucket {
	if b := k.buckets[name]; b != nil {
		return *b
	}
	return bucket{}
}

func (k *Book) put(name id, b bucket) {
	old := k.buckets[name]
	if old == nil {
		old = new(bucket)
		k.buckets[name] = old
		k.checks = append(k.checks, check{name, b.at + Idle.Milliseconds()})
	}
	*old = b
}

// perMilli is amount/per in units per ms.
func perMilli(amount int64, per time.Duration) float64 {
	return float64(amount) / float64(per.Milliseconds())
}

// holds is what a leaky bucket of that rate takes at once: one unit at the least.
func holds(rate float64) float64 { return max(rate*float64(Burst.Milliseconds()), 1) }

// over is how long a leaky bucket that holds so much needs until cost has room in it,
// in ms; 0 = it has. What is larger than the whole bucket has room in an empty one.
func over(held, cost, rate float64) float64 {
	most := holds(rate)
	if held <= Slack || held+cost <= most+Slack {
		return 0
	}
	return (held + min(cost, most) - most) / rate
}

// one is how a single limit stands.
type one struct {
	wait      float64 // ms
	remaining float64 // with nothing taken
	reset     float64
	owned     bool // the slice has room
}

func (k *Book) look(l *Limit, at int64, cost float64, waited bool) (o one) {
	if l.Window {
		per := l.Per.Milliseconds()
		start, taken := at-at%per, 0.0
		if b := k.get(l.id()); b.start == start {
			taken = b.level
		}
		if taken > 0 && taken+cost > float64(l.Amount)+Slack {
			o.wait = float64(start + per - at)
		}
		return one{wait: o.wait, remaining: float64(l.Amount) - taken, reset: float64(start + per - at)}
	}
	leaky := func(name id, amount int64) one {
		rate := perMilli(amount, l.Per)
		b := k.get(name).now(at, rate)
		held := b.level
		if !waited {
			held += b.promised + b.earlier
		}
		return one{wait: over(held, cost, rate), remaining: holds(rate) - b.level, reset: b.level / rate}
	}
	o = leaky(l.id(), l.Amount)
	if l.Own > 0 {
		own := leaky(l.slice(), l.Own)
		o.owned = own.wait == 0
		o.wait = min(o.wait, own.wait)
		o.remaining = max(o.remaining, own.remaining)
	}
	return o
}

// Look says whether every limit has room for a request of that many tokens, and which
// has it last. It changes nothing. waited: the request has slept as it was told, and
// what is promised does not count against it. limits are valid, see Check.
func (k *Book) Look(now time.Time, limits []Limit, tokens int, waited bool) (v Verdict) {
	at, longest := now.UnixMilli(), 0.0
	var all [MaxLimits]one
	for i := range limits {
		all[i] = k.look(&limits[i], at, limits[i].cost(tokens), waited)
		if all[i].wait > longest {
			v.Refused, v.Tripped, longest = true, i, all[i].wait
		}
	}
	v.Wait = millis(math.Ceil(longest))
	for i := range limits {
		l, o := &limits[i], &all[i]
		if !v.Refused { // as it is once this is taken
			cost := l.cost(tokens)
			o.remaining -= cost
			if !l.Window {
				o.reset += cost / perMilli(l.Amount, l.Per)
			}
		}
		v.Rooms[i] = Room{Remaining: int64(max(o.remaining+Slack, 0)), Reset: millis(o.reset)}
	}
	return v
}

func millis(ms float64) time.Duration {
	return time.Duration(min(ms, 1e12)) * time.Millisecond
}

// Promise keeps the place of a refused request that sleeps Verdict.Wait: who comes
// after it waits longer.
func (k *Book) Promise(now time.Time, limits []Limit, tokens int) {
	at := now.UnixMilli()
	for i := range limits {
		l := &limits[i]
		if l.Window {
			continue
		}
		add := func(name id, amount int64) {
			b := k.get(name).now(at, perMilli(amount, l.Per))
			b.promised += l.cost(tokens)
			k.put(name, b)
		}
		add(l.id(), l.Amount)
		if l.Own > 0 {
			add(l.slice(), l.Own)
		}
	}
}

// Charge is what one request has taken, to be settled once. The zero Charge took
// nothing.
type Charge struct {
	Tokens int
	taken  []taken
}

// taken is from one bucket. Of a window start is which.
type taken struct {
	id
	rate  float64
	start int64
}

// Take takes a request that Look let in, at the same now. slept: it was promised room.
func (k *Book) Take(now time.Time, limits []Limit, tokens int, slept bool) Charge {
	at := now.UnixMilli()
	c := Charge{Tokens: max(tokens, 1)}
	for i := range limits {
		l := &limits[i]
		cost := l.cost(tokens)
		add := func(name id, rate float64, start int64) {
			k.add(name, at, cost, rate, start)
			if l.Unit == Tokens {
				c.taken = append(c.taken, taken{name, rate, start})
			}
		}
		if l.Window {
			add(l.id(), 0, at-at%l.Per.Milliseconds())
			continue
		}
		owned := l.Own > 0 && k.look(l, at, cost, slept).owned
		add(l.id(), perMilli(l.Amount, l.Per), 0)
		if owned {
			add(l.slice(), perMilli(l.Own, l.Per), 0)
		}
		if slept {
			k.kept(l.id(), at, cost, perMilli(l.Amount, l.Per))
			if l.Own > 0 {
				k.kept(l.slice(), at, cost, perMilli(l.Own, l.Per))
			}
		}
	}
	return c
}

// kept takes back a promise that was made to a request of that cost.
func (k *Book) kept(name id, at int64, cost, rate float64) {
	b := k.get(name).now(at, rate) // else what it promised is taken for another turn's
	b.keep(cost)
	k.put(name, b)
}

// add changes a bucket's level, not below nothing.
func (k *Book) add(name id, at int64, by, rate float64, start int64) {
	b := k.get(name)
	if name.window == 0 {
		b = b.now(at, rate)
	} else if b.start != start {
		if b.start > start {
			return // a window that is over
		}
		b = bucket{start: start}
	}
	b.at = at
	b.level = max(b.level+by, 0)
	k.put(name, b)
}

// Settle replaces what c reserved by what was used; below 0: as it was reserved. More
// than was reserved is a debt. Call it once per charge.
func (k *Book) Settle(now time.Time, c *Charge, used int) {
	if used < 0 || used == c.Tokens {
		return
	}
	for _, t := range c.taken {
		k.add(t.id, now.UnixMilli(), float64(used-c.Tokens), t.rate, t.start)
	}
}

// Sweep forgets buckets that are empty and unused for Idle. Call it every second.
func (k *Book) Sweep(now time.Time) {
	at := now.UnixMilli()
	for range min(len(k.checks), sweepMost) {
		c := k.checks[0]
		if c.at > at {
			return
		}
		k.checks = k.checks[1:]
		b := k.buckets[c.id]
		due := max(b.at+Idle.Milliseconds(), b.start+c.window)
		if b.rate > 0 {
			due = b.forgotten()
		}
		if due <= at {
			delete(k.buckets, c.id)
			continue
		}
		k.checks = append(k.checks, check{c.id, at + Idle.Milliseconds()}) // in order; late by Idle at most
	}
}
