// Package gate is penstock between the clients and the engines of a simulated world:
// gateway's door, lanes as queue/memory keeps them and one agent per engine. The
// decisions are the code of production (registry/door, cost and scheduler), called in
// its order.
package gate

import (
	"strconv"
	"time"

	"penstock/cost"
	"penstock/fleet"
	"penstock/lane"
	"penstock/reason"
	"penstock/registry/door"
	"penstock/scheduler"
	"penstock/sim/random"
	"penstock/sim/world"
)

// What production configures: gateway's limits and the defaults of agent's room.
const (
	deadline    = 30 * time.Second
	leastLimit  = 250 * time.Millisecond // the door's limit is never below
	keepRate    = 30 * time.Second       // the last drain rate serves so long
	roomSize    = 8
	roomPerLane = 2
	roomHold    = 500 * time.Millisecond
	model       = "m"
)

// Config is a gate's law, and who comes to it.
type Config struct {
	Law     scheduler.Law
	Oracle  bool                    // lengths are known
	Alone   bool                    // agents do not know of each other
	TTFT    time.Duration           // limit of the first token, but for a second tier's, which has its own
	TPOT    time.Duration           // limit of the mean time per token
	Tenants int                     // at least 1
	Tiers   []scheduler.Tier        // none for one; else tenant i is of tier i
	Width   int                     // lines of a tenant's lane, at least 1
	Told    func(scheduler.Verdict) // hears of each verdict on a head
}

// Gate is penstock as a world's front.
type Gate struct {
	w       *world.World
	cfg     Config
	door    *door.Door
	prices  *cost.Estimator
	lanes   []*lanes  // by tenant
	tickets []*ticket // by their visits' IDs
	agents  []*agent
	rate    float64 // last drain rate that was known
	rateAt  time.Duration
	last    int // agent that got the last delivery
}

// ticket is a visit inside the gate.
type ticket struct {
	v        *world.Visit
	line     *line
	agent    *agent // that has it
	req      scheduler.Request
	tokens   int
	forecast door.Forecast
	open     bool // outstanding in its line
	counted  bool // in the door's backlog
	due      time.Duration
	hold     scheduler.Verdict
	entered  time.Duration // the room
	slot     scheduler.Slot
	begun    bool // its first token was told
}

// lanes is a tenant's lane: one line in memory, several with a broker.
type lanes struct {
	key   lane.Key
	rank  int // of its tier
	own   door.Share
	lines []*line
}

// emptiest is the line with the fewest outstanding tokens, the first of equals.
func (l *lanes) emptiest() *line {
	least := l.lines[0]
	for _, o := range l.lines[1:] {
		if o.tokens < least.tokens {
			least = o
		}
	}
	return least
}

// line is first in, first out: its next head is out once the one before has started or left.
type line struct {
	lane     *lanes
	tokens   int       // of what has come and not ended
	waiting  []*ticket // by order of arrival
	deciding *ticket
	alarm    time.Duration
}

// New makes a gate for a world that has not begun. An error is one of cost's or the
// scheduler's about its configuration.
func New(cfg Config, w *world.World) (*Gate, error) {
	prices, err := cost.New(cost.DefaultConfig())
	if err != nil {
		return nil, err
	}
	g := &Gate{w: w, cfg: cfg, door: door.New(w.Time()), prices: prices}
	for i := range cfg.Tenants {
		l := &lanes{key: lane.Key{Tier: "default", Type: "chat", Model: model, Tenant: strconv.Itoa(i)}}
		if t := cfg.Tiers; t != nil {
			l.key.Tier, l.rank = t[i].Name, i
		}
		for range cfg.Width {
			l.lines = append(l.lines, &line{lane: l})
		}
		g.lanes = append(g.lanes, l)
	}
	own := scheduler.DefaultConfig()
	own.Law, own.Poll, own.SLOTTFT, own.SLOTPOT, own.Ready = cfg.Law, world.Poll, cfg.TTFT, cfg.TPOT, roomSize
	own.Tiers = cfg.Tiers
	for i := range w.Engines() {
		s, err := scheduler.New(own, w.Time())
		if err != nil {
			return nil, err
		}
		s.SetMaxModelLen(w.Profile.Engine.MaxModelLen)
		g.agents = append(g.agents, &agent{g: g, unit: i, sched: s})
	}
	return g, nil
}

// Arrive is gateway's way in: price, door, lane.
func (g *Gate) Arrive(v *world.Visit) {
	w, l := g.w, g.lanes[v.Tenant]
	t := &ticket{v: v, line: l.emptiest()}
	g.tickets = append(g.tickets, t)
	t.req = scheduler.Request{
		Hash: v.Hash, PromptTokens: v.Guessed(), SafePrompt: v.Prompt, Sequences: 1, Stream: true,
		ExpectedOut: g.prices.Output(cost.ClassOf(l.key), 0), Tenant: uint64(v.Tenant), Class: random.Mix(1, uint64(v.Tenant)) | 1, Model: 1,
		Opened: w.Time(), Deadline: w.Time().Add(deadline), SLOTTFT: g.cfg.TTFT, SLOTPOT: g.cfg.TPOT,
	}
	limit := deadline
	if v.Low {
		limit = g.cfg.Tiers[l.rank].SLOTTFT
		t.req.Tier, t.req.SLOTTFT, t.req.Deadline = l.rank, limit, w.Time().Add(limit)
	}
	if g.cfg.Oracle {
		t.req.PromptTokens, t.req.ExpectedOut, t.req.Class, t.req.Model = v.Prompt, v.Output, 0, 0
	}
	t.tokens = t.req.PromptTokens + t.req.ExpectedOut
	rate, firstToken := g.drain()
	a, f := g.door.Judge(&door.Visitor{
		ID: strconv.FormatUint(v.Hash, 16), Lane: l.key, Rank: l.rank, Fingerprint: random.Mix(2, uint64(v.Origin)) | 1, Tokens: t.tokens,
		Limit: min(max(t.req.SLOTTFT-firstToken, leastLimit), limit), Own: l.own, Rate: rate,
	}, w.Time())
	if a.Reason != reason.OK {
		w.Refuse(v, a.RetryAfter)
		return
	}
	t.forecast = f
	g.count(t, 1)
	g.outstanding(t, true)
	t.line.waiting = append(t.line.waiting, t)
	g.place(t.line)
}

// drain is the engines' rate of taking work, from their rows.
func (g *Gate) drain() (rate float64, firstToken time.Duration) {
	rows := make([]fleet.Row, len(g.agents))
	for i, a := range g.agents {
		rows[i] = a.row
	}
	_, rate, firstToken = fleet.Drain(rows, model, g.w.Time())
	switch {
	case rate > 0:
		g.rate, g.rateAt = rate, g.w.Now
	case g.w.Now-g.rateAt <= keepRate:
		rate = g.rate
	}
	return rate, firstToken
}

// outstanding counts a ticket in its line from when it comes until it ends.
func (g *Gate) outstanding(t *ticket, open bool) {
	switch {
	case open == t.open:
	case open:
		t.line.tokens += t.tokens
	default:
		t.line.tokens -= t.tokens
	}
	t.open = open
}

// count moves a ticket into the door's backlog or out of it.
func (g *Gate) count(t *ticket, sign int) {
	t.counted = sign > 0
	g.door.Shift(t.line.lane.key, t.line.lane.rank, t.tokens, sign, &t.line.lane.own, g.w.Time())
}

// left is a request that leaves the backlog unstarted.
func (g *Gate) left(t *ticket) {
	if t.counted {
		g.door.Left(t.line.lane.key, t.forecast, t.req.Opened, g.w.Time())
		g.count(t, -1)
	}
}

// place delivers the head of a lane if it is due, as queue/memory does.
func (g *Gate) place(l *line) {
	if l.deciding != nil || len(l.waiting) == 0 {
		return
	}
	t := l.waiting[0]
	if t.due > g.w.Now {
		if due := t.due; l.alarm != due {
			l.alarm = due
			g.w.At(due, func() {
				if l.alarm == due {
					l.alarm = 0
				}
				g.place(l)
			})
		}
		return
	}
	l.waiting = l.waiting[1:]
	l.deciding = t
	g.last = (g.last + 1) % len(g.agents)
	t.agent = g.agents[g.last]
	g.w.After(0, func() { t.agent.handle(t) })
}

// settled is a delivery that comes to its end before or with its start.
func (g *Gate) settled(t *ticket) {
	if t.line.deciding == t {
		t.line.deciding = nil
		g.place(t.line)
	}
}

// suspended puts a delivery back into its place in the lane.
func (g *Gate) suspended(t *ticket, after time.Duration) {
	l := t.line
	t.agent, t.due = nil, g.w.Now+after+suspendLate
	i := len(l.waiting)
	for i > 0 && l.waiting[i-1].v.ID > t.v.ID {
		i--
	}
	l.waiting = append(l.waiting, nil)
	copy(l.waiting[i+1:], l.waiting[i:])
	l.waiting[i] = t
	g.settled(t)
}

// suspendLate is how much later than asked a suspended message comes back, as
// measured on RocketMQ 5.5; lanes in memory have about a millisecond.
const suspendLate = 12 * time.Millisecond

// Gone cancels: a queued request is over at once, a running one is cut.
func (g *Gate) Gone(v *world.Visit) {
	t := g.tickets[v.ID]
	t.req.Aborted = true
	g.outstanding(t, false)
	g.left(t)
	for i, o := range t.line.waiting {
		if o == t {
			t.line.waiting = append(t.line.waiting[:i], t.line.waiting[i+1:]...)
			g.place(t.line)
			return
		}
	}
	if t.agent != nil {
		t.agent.gone(t)
	}
}

// Token moves the ledger on.
func (g *Gate) Token(v *world.Visit) {
	t := g.tickets[v.ID]
	t.agent.progress(t)
}

// Ended gives the place in the ledger back and learns from an answer.
func (g *Gate) Ended(v *world.Visit) {
	t := g.tickets[v.ID]
	g.outstanding(t, false)
	t.agent.release(t, v.Phase == world.Over)
	if v.Phase == world.Over {
		g.prices.Learn(cost.ClassOf(t.line.lane.key), 4*t.req.PromptTokens, 0, v.Prompt, v.Out)
	}
}

// Sample gives a page to the engine's agent.
func (g *Gate) Sample(unit int, s scheduler.Sample) { g.agents[unit].sample(s) }
