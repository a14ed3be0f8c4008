package order

import (
	"fmt"
	"time"

	"penstock/scheduler/fair"
)

// MostTiers is how many tiers there may be.
const MostTiers = 16

// Tier is a class of requests. Earlier tiers go first. Shares are of the engine's KV
// tokens, and what counts against them is what a tier's requests in flight hold and
// are expected to; where the engine does not say how many KV tokens it has, they do
// not apply.
type Tier struct {
	Name    string
	Floor   float64       // while it holds less it goes before tiers that have their own floor; 0 = none
	Ceiling float64       // it never holds more but under relief, and one request may always run; 1 = no limit
	Age     time.Duration // a head that has waited longer goes before all others, one of them at a time; 0 = never
	SLOTTFT time.Duration // limits of its requests, for which tiers after it leave room; 0 = as New was told
	SLOTPOT time.Duration
}

// ValidateTiers names the first tier and field that cannot work, its value and the fix.
func ValidateTiers(tiers []Tier) error {
	if len(tiers) > MostTiers {
		return fmt.Errorf("tiers: %d tiers; set at most %d", len(tiers), MostTiers)
	}
	floors := 0.0
	for i := range tiers {
		t := &tiers[i]
		bad := func(field string, value any, fix string) error {
			return fmt.Errorf("tiers: %s of tier %q is %v; %s", field, t.Name, value, fix)
		}
		switch {
		case t.Name == "" || len(t.Name) > 32:
			return fmt.Errorf("tiers: the name of tier %d is %q; set 1 to 32 bytes", i+1, t.Name)
		case !(t.Floor >= 0 && t.Floor <= 1):
			return bad("floor", t.Floor, "set a share from 0 (none) to 1")
		case !(t.Ceiling > 0 && t.Ceiling <= 1):
			return bad("ceiling", t.Ceiling, "set a share above 0, up to 1 (no limit)")
		case t.Ceiling < t.Floor:
			return bad("ceiling", t.Ceiling, fmt.Sprintf("set at least its floor (%g)", t.Floor))
		case t.Age < 0 || t.Age > 600*time.Second:
			return bad("age", t.Age, "set 0 (never goes first for its age) to 10m")
		case t.SLOTTFT < 0 || t.SLOTTFT > 600*time.Second:
			return bad("slo-ttft", t.SLOTTFT, "set up to 10m, or leave it out")
		case t.SLOTPOT < 0 || t.SLOTPOT > time.Minute:
			return bad("slo-tpot", t.SLOTPOT, "set up to 1m, or leave it out")
		}
		for _, other := range tiers[:i] {
			if other.Name == t.Name {
				return fmt.Errorf("tiers: two tiers are called %q; give each its own name", t.Name)
			}
		}
		floors += t.Floor
	}
	if floors > 1+1e-9 {
		return fmt.Errorf("tiers: floors add up to %g; set at most 1 together", floors)
	}
	return nil
}

// Rank is the place of the tier with this name; of one that is not known, the last.
func Rank(tiers []Tier, name string) int {
	for i := range tiers {
		if tiers[i].Name == name {
			return i
		}
	}
	return max(len(tiers)-1, 0)
}

// tier is one class at work.
type tier struct {
	Tier
	relief   relief
	fair     *fair.Counters
	inflight int           // requests
	tokens   int           // what they hold and are expected to
	old      int           // of them, started for their age
	ttft     time.Duration // the strictest slo_ttft, its own or of a tier before it
	patient  bool          // it has far more time than one of the tiers before it
	started  time.Duration // its last start
	tpot     time.Duration // the strictest slo_tpot of the tiers before it; 0 = there are none
}

// newTiers makes the tiers of a configuration; without any there is one.
func newTiers(list []Tier, ttft, tpot time.Duration) []tier {
	if len(list) == 0 {
		list = []Tier{{Name: "default", Ceiling: 1}}
	}
	all := make([]tier, len(list))
	for i := range list {
		t := &all[i]
		t.Tier, t.fair = list[i], fair.New()
		if t.SLOTTFT == 0 {
			t.SLOTTFT = ttft
		}
		if t.SLOTPOT == 0 {
			t.SLOTPOT = tpot
		}
		if t.ttft = t.SLOTTFT; i > 0 {
			before := &all[i-1]
			if t.ttft, t.tpot = min(t.ttft, before.ttft), before.SLOTPOT; before.tpot > 0 {
				t.tpot = min(t.tpot, before.tpot)
			}
			t.patient = t.SLOTTFT > patientFrom*t.ttft
		}
	}
	return all
}

// place is a tier's; one that is not there counts as the last.
func (q *Queue) place(tier int) int { return max(0, min(tier, len(q.tiers)-1)) }

// SLOTTFT is a tier's limit for first tokens.
func (q *Queue) SLOTTFT(tier int) time.Duration { return q.tiers[q.place(tier)].SLOTTFT }

// SLOTPOT is the limit that a request must leave the engine in: its own, or its tier's
// where that is 0, or that of a tier before its own.
func (q *Queue) SLOTPOT(tier int, own time.Duration) time.Duration {
	c := &q.tiers[q.place(tier)]
	if own == 0 {
		own = c.SLOTPOT
	}
	if c.tpot > 0 {
		own = min(own, c.tpot)
	}
	return own
}

// aged reports whether a head goes first for its age. One at a time of each tier: a
// long backlog is all old, and would go before everything.
func (c *tier) aged(t, opened time.Duration) bool {
	return c.Age > 0 && c.old == 0 && t-opened > c.Age
}

// pendShare is the part of slo_ttft that pending prompts may take while tenants or
// tiers share the engine.
const pendShare = 8

// A tier with more than patientFrom times the slo_ttft of one before it leaves that
// one's first tokens nearly as they are: while it had a start within awayAfter, what is
// pending with a start takes half a step's time at most, or momentShare of the slo.
// Replayed, 20,000 jobs behind conversations at half load move their p99 by 5 %
// (KV-bound) and 3 % (prefill-bound), with an eighth of the slo by 26 % and 66 %.
const (
	patientFrom = 4
	momentShare = 64
	awayAfter   = 10 * time.Second
)

// Full reports whether tokens more would pass a tier's ceiling.
func (q *Queue) Full(tier, tokens int) bool { return q.tiers[q.place(tier)].full(tokens, q.kv) }

// MostWith is how long prompts may be pending with a start of a tier, its own included,
// while a step takes so long (0 = not known); Never for all but patient tiers.
func (q *Queue) MostWith(t time.Duration, tier int, step time.Duration) time.Duration {
	i := q.place(tier)
	if !q.tiers[i].patient {
		return Never
	}
	limit := q.tiers[i].ttft / pendShare
	for k := range q.tiers[:i] {
		if c := &q.tiers[k]; c.started > 0 && t-c.started < awayAfter {
			limit = q.tiers[i].ttft / momentShare
			if step > 0 {
				limit = min(limit, step/2)
			}
		}
	}
	return limit
}

// MostPending is how long prompts may be pending before a start of a tenant: while
// others run here, and for all tiers but the first, whoever comes next, of this tier or
// one before it, is to be late by a part of the slo only. The engine's own queue knows no
// order. Never where there is none to keep.
func (q *Queue) MostPending(tier int, tenant uint64) time.Duration {
	i := q.place(tier)
	if c := &q.tiers[i]; i > 0 || c.fair.Shared(tenant) {
		return c.ttft / pendShare
	}
	return Never
}
