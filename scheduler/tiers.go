package scheduler

import (
	"fmt"
	"time"

	"penstock/reason"
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
	SLOTTFT time.Duration // limits of its requests, for which tiers after it leave room; 0 = Config's
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

// moment is how long a patient tier may keep prefill busy.
func (s *State) moment(t time.Duration, i int) time.Duration {
	limit := s.tiers[i].ttft / pendShare
	for k := range s.tiers[:i] {
		if c := &s.tiers[k]; c.started > 0 && t-c.started < awayAfter {
			limit = s.tiers[i].ttft / momentShare
			if s.step > 0 {
				limit = min(limit, s.step/2)
			}
		}
	}
	return limit
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
func newTiers(cfg *Config) []tier {
	list := cfg.Tiers
	if len(list) == 0 {
		list = []Tier{{Name: "default", Ceiling: 1}}
	}
	all := make([]tier, len(list))
	for i := range list {
		t := &all[i]
		t.Tier, t.fair = list[i], fair.New()
		if t.SLOTTFT == 0 {
			t.SLOTTFT = cfg.SLOTTFT
		}
		if t.SLOTPOT == 0 {
			t.SLOTPOT = cfg.SLOTPOT
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

// tier is a request's, by its place; one that is not there counts as the last.
func (s *State) tier(r *Request) int { return clamp(r.Tier, 0, len(s.tiers)-1) }

// class is a tier's place in the order: tiers below their floor, then all, by rank.
func (s *State) class(i int) int {
	t := &s.tiers[i]
	if t.Floor > 0 && float64(t.tokens) < t.Floor*float64(s.sample.KVTokens) {
		return 1 + i
	}
	return 1 + MostTiers + i
}

// aged reports whether a head goes first for its age. One at a time of each tier: a
// long backlog is all old, and would go before everything.
func (c *tier) aged(t, opened time.Duration) bool {
	return c.Age > 0 && c.old == 0 && t-opened > c.Age
}

// allows is what a tier's rules say about a request: its ceiling; and while others run
// here, prompts pending beyond one chunk wait outside, so that whoever comes next, of
// this tier or one before it, is late by a part of the slo only. The engine's own queue
// knows no order.
func (s *State) allows(t time.Duration, r *Request) reason.Reason {
	i := s.tier(r)
	c := &s.tiers[i]
	if c.full(r.prompt()+r.expected(), s.sample.KVTokens) {
		return reason.TierCeiling
	}
	if c.patient && s.pendSeqs > 0 && s.speed.prefill(s.pendTokens+r.prompt()) > s.moment(t, i) {
		return reason.TierTurn
	}
	if (i > 0 || c.fair.Shared(r.Tenant)) && s.pendTokens > s.cfg.ColdTokens && s.speed.prefill(s.pendTokens) > c.ttft/pendShare {
		return reason.PrefillBusy
	}
	return reason.OK
}

// bill is what a request in flight is to its tier and its tenant.
type bill struct {
	who     fair.Tenant
	tier    int
	old     bool  // started for its age
	tokens  int   // counted in its tier
	charged int64 // to its tenant
}

// enter takes a request that starts into the books: what it is expected to cost is
// charged at once, so that the next of its tenant waits for the others'.
func (s *State) enter(t time.Duration, r *Request, e *slot) {
	x := s.head(t, r)
	if s.heads.find(r.Hash) < 0 {
		s.join(t, &x)
		s.tiers[x.tier].fair.Left(x.who, int64(t))
	}
	s.forget(t, r)
	c := &s.tiers[x.tier]
	e.bill = bill{who: x.who, tier: x.tier, old: s.tiers[x.tier].aged(t, x.opened), tokens: e.prompt + e.expected, charged: x.cost}
	c.fair.Charge(x.who, x.cost)
	c.fair.Run(x.who, 1)
	c.started = t
	c.inflight++
	c.tokens += e.bill.tokens
	if e.bill.old {
		c.old++
	}
}

// grown keeps the books up to a request that holds more than was expected.
func (s *State) grown(e *slot) {
	c := &s.tiers[e.bill.tier]
	if d := e.prompt + max(e.out, e.expected) - e.bill.tokens; d != 0 {
		e.bill.tokens += d
		c.tokens += d
	}
	if d := fair.Cost(e.prompt, e.out) - e.bill.charged; d > 0 {
		e.bill.charged += d
		c.fair.Charge(e.bill.who, d)
	}
}

// exit settles a request with what it had: a prompt that has no first token, as far as
// it can be computed by now.
func (s *State) exit(t time.Duration, e *slot) {
	c := &s.tiers[e.bill.tier]
	c.fair.Run(e.bill.who, -1)
	c.inflight--
	c.tokens -= e.bill.tokens
	if e.bill.old {
		c.old--
	}
	prompt := e.prompt
	if rate := s.speed.rate(); !e.begun && rate > 0 {
		prompt = min(prompt, int(rate*(t-e.begin).Seconds()))
	}
	c.fair.Charge(e.bill.who, fair.Cost(prompt, e.out)-e.bill.charged)
}
