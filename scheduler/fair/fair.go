// Package fair keeps how much service each tenant has had: the virtual token counters
// of Sheng et al., "Fairness in Serving Large Language Models" (arXiv 2401.00588). The
// tenant with the lowest counter is served next. Pure.
package fair

// What a token counts: an output token takes a step of its own.
const (
	In  = 1
	Out = 2
)

// Most is how many tenants are remembered; the one not looked at for longest makes
// room for another. 48 bytes each.
const Most = 1024

// Cost is what a request of so many tokens is charged.
func Cost(in, out int) int64 { return In*int64(in) + Out*int64(out) }

// Tenant names a counter: where it is, and whose it is as long as it is remembered.
// The zero Tenant is nobody.
type Tenant struct {
	key   uint64
	place int32
}

// Counters are the counters of one queue of tenants. Make them with New. Only the
// first Most tenants allocate.
type Counters struct {
	of   map[uint64]int32
	all  []counter
	hand int    // the place looked at first when room is wanted
	last Tenant // left the queue last
	live int    // tenants with something running
}

type counter struct {
	key    uint64
	tokens int64
	runs   int   // requests that run
	left   int64 // when the tenant's last waiting request was gone, in the caller's time; meaningful with gone
	gone   bool
	recent bool // looked at since the hand came by
}

// New makes counters of nobody.
func New() *Counters { return &Counters{of: make(map[uint64]int32)} }

// Of finds or makes a tenant's counter. A new one is 0 until Lift.
func (c *Counters) Of(key uint64) Tenant {
	i, ok := c.of[key]
	if !ok {
		i = c.room()
		c.all[i] = counter{key: key}
		c.of[key] = i
	}
	c.all[i].recent = true
	return Tenant{key, i}
}

// room is a new place, or that of a tenant nobody has looked at for a while.
func (c *Counters) room() int32 {
	if len(c.all) < Most {
		c.all = append(c.all, counter{})
		return int32(len(c.all) - 1)
	}
	for ; c.all[c.hand].recent; c.hand = (c.hand + 1) % Most {
		c.all[c.hand].recent = false
	}
	i := c.hand
	if c.all[i].runs > 0 {
		c.live--
	}
	c.hand = (c.hand + 1) % Most
	delete(c.of, c.all[i].key)
	return int32(i)
}

func (c *Counters) at(t Tenant) *counter {
	if int(t.place) < len(c.all) {
		if e := &c.all[t.place]; e.key == t.key {
			return e
		}
	}
	return nil
}

// Tokens is a tenant's counter; 0 for one that is forgotten.
func (c *Counters) Tokens(t Tenant) int64 {
	if e := c.at(t); e != nil {
		return e.tokens
	}
	return 0
}

// Charge adds tokens, or gives them back.
func (c *Counters) Charge(t Tenant, tokens int64) {
	if e := c.at(t); e != nil {
		e.tokens += tokens
	}
}

// Run notes that a request of a tenant starts, 1, or ends, -1.
func (c *Counters) Run(t Tenant, sign int) {
	e := c.at(t)
	if e == nil {
		return
	}
	before := e.runs > 0
	if e.runs += sign; (e.runs > 0) != before {
		c.live += sign
	}
}

// Shared reports whether others than this tenant have something running.
func (c *Counters) Shared(key uint64) bool {
	if c.live == 1 {
		i, ok := c.of[key]
		return !ok || c.all[i].runs == 0
	}
	return c.live > 1
}

// Left notes that a tenant has nothing left that waits, at now in any unit.
func (c *Counters) Left(t Tenant, now int64) {
	if e := c.at(t); e != nil {
		e.left, e.gone = now, true
		c.last = t
	}
}

// Last is the counter of who left the queue last.
func (c *Counters) Last() int64 { return c.Tokens(c.last) }

// Lift is for a tenant that waits again, with a request that came at opened. Had it
// nothing in the queue until then, what it did not use meanwhile is forgone but for a
// credit, and its counter rises to least: the lowest of those who wait, or where
// nobody does, Last, less the credit. VTC has none; the gap between two tenants grows
// by as much at most, and a burst of who uses little need not take turns.
func (c *Counters) Lift(t Tenant, opened, least int64) {
	if e := c.at(t); e != nil && (!e.gone || opened > e.left) {
		e.tokens = max(e.tokens, least)
	}
}
