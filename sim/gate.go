package sim

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
)

// What production configures: gateway's limits and the defaults of agent's room.
const (
	sloTTFT     = 2 * time.Second
	sloTPOT     = 100 * time.Millisecond
	deadline    = 30 * time.Second
	leastLimit  = 250 * time.Millisecond // the door's limit is never below
	keepRate    = 30 * time.Second       // the last drain rate serves so long
	roomSize    = 8
	roomPerLane = 2
	roomHold    = 500 * time.Millisecond
	model       = "m"
)

// gate is penstock: the gateway's door, lanes in memory and one agent per engine.
type gate struct {
	w      *world
	oracle bool // lengths are known
	alone  bool // agents do not know of each other
	door   *door.Door
	prices *cost.Estimator
	lanes  []*lanes // by tenant
	agents []*agent
	rate   float64 // last drain rate that was known
	rateAt time.Duration
	last   int // agent that got the last delivery
}

// ticket is a visit inside the gate.
type ticket struct {
	v        *visit
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

func newGate(w *world, law scheduler.Law, oracle, alone bool) (*gate, error) {
	prices, err := cost.New(cost.DefaultConfig())
	if err != nil {
		return nil, err
	}
	g := &gate{w: w, oracle: oracle, alone: alone, door: door.New(epoch), prices: prices}
	for i := range w.tally.tenants {
		l := &lanes{key: lane.Key{Tier: "default", Type: "chat", Model: model, Tenant: strconv.Itoa(i)}}
		if t := w.tally.tiers; t != nil {
			l.key.Tier, l.rank = t[i].Name, i
		}
		for range w.tally.width {
			l.lines = append(l.lines, &line{lane: l})
		}
		g.lanes = append(g.lanes, l)
	}
	cfg := scheduler.DefaultConfig()
	cfg.Law, cfg.Poll, cfg.SLOTTFT, cfg.SLOTPOT, cfg.Ready = law, poll, sloTTFT, sloTPOT, roomSize
	cfg.Tiers = w.tally.tiers
	for i := range w.units {
		s, err := scheduler.New(cfg, epoch)
		if err != nil {
			return nil, err
		}
		s.SetMaxModelLen(w.tally.profile.Engine.MaxModelLen)
		g.agents = append(g.agents, &agent{g: g, unit: i, sched: s})
	}
	return g, nil
}

// arrive is gateway's way in: price, door, lane.
func (g *gate) arrive(v *visit) {
	w, l := g.w, g.lanes[v.Tenant]
	t := &ticket{v: v, line: l.emptiest()}
	v.ticket = t
	t.req = scheduler.Request{
		Hash: v.hash, PromptTokens: v.guessed(), SafePrompt: v.Prompt, Sequences: 1, Stream: true,
		ExpectedOut: g.prices.Output(cost.ClassOf(l.key), 0), Tenant: uint64(v.Tenant), Class: random.Mix(1, uint64(v.Tenant)) | 1, Model: 1,
		Opened: w.time(), Deadline: w.time().Add(deadline), SLOTTFT: sloTTFT, SLOTPOT: sloTPOT,
	}
	limit := deadline
	if v.Low {
		t.req.Tier, t.req.SLOTTFT, t.req.Deadline = l.rank, lowLimit, w.time().Add(lowLimit)
		limit = lowLimit
	}
	if g.oracle {
		t.req.PromptTokens, t.req.ExpectedOut, t.req.Class, t.req.Model = v.Prompt, v.Output, 0, 0
	}
	t.tokens = t.req.PromptTokens + t.req.ExpectedOut
	rate, firstToken := g.drain()
	a, f := g.door.Judge(&door.Visitor{
		ID: strconv.FormatUint(v.hash, 16), Lane: l.key, Rank: l.rank, Fingerprint: random.Mix(2, uint64(v.origin)) | 1, Tokens: t.tokens,
		Limit: min(max(t.req.SLOTTFT-firstToken, leastLimit), limit), Own: l.own, Rate: rate,
	}, w.time())
	if a.Reason != reason.OK {
		w.refuse(v, a.RetryAfter)
		return
	}
	t.forecast = f
	g.count(t, 1)
	g.outstanding(t, true)
	t.line.waiting = append(t.line.waiting, t)
	g.place(t.line)
}

// drain is the engines' rate of taking work, from their rows.
func (g *gate) drain() (rate float64, firstToken time.Duration) {
	rows := make([]fleet.Row, len(g.agents))
	for i, a := range g.agents {
		rows[i] = a.row
	}
	_, rate, firstToken = fleet.Drain(rows, model, g.w.time())
	switch {
	case rate > 0:
		g.rate, g.rateAt = rate, g.w.now
	case g.w.now-g.rateAt <= keepRate:
		rate = g.rate
	}
	return rate, firstToken
}

// outstanding counts a ticket in its line from when it comes until it ends.
func (g *gate) outstanding(t *ticket, open bool) {
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
func (g *gate) count(t *ticket, sign int) {
	t.counted = sign > 0
	g.door.Shift(t.line.lane.key, t.line.lane.rank, t.tokens, sign, &t.line.lane.own, g.w.time())
}

// left is a request that leaves the backlog unstarted.
func (g *gate) left(t *ticket) {
	if t.counted {
		g.door.Left(t.line.lane.key, t.forecast, t.req.Opened, g.w.time())
		g.count(t, -1)
	}
}

// place delivers the head of a lane if it is due, as queue/memory does.
func (g *gate) place(l *line) {
	if l.deciding != nil || len(l.waiting) == 0 {
		return
	}
	t := l.waiting[0]
	if t.due > g.w.now {
		if due := t.due; l.alarm != due {
			l.alarm = due
			g.w.at(due, func() {
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
	g.w.after(0, func() { t.agent.handle(t) })
}

// settled is a delivery that comes to its end before or with its start.
func (g *gate) settled(t *ticket) {
	if t.line.deciding == t {
		t.line.deciding = nil
		g.place(t.line)
	}
}

// suspended puts a delivery back into its place in the lane.
func (g *gate) suspended(t *ticket, after time.Duration) {
	l := t.line
	t.agent, t.due = nil, g.w.now+after+suspendLate
	i := len(l.waiting)
	for i > 0 && l.waiting[i-1].v.id > t.v.id {
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

// gone cancels: a queued request is over at once, a running one is cut.
func (g *gate) gone(v *visit) {
	t := v.ticket
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

func (g *gate) token(v *visit) { v.ticket.agent.progress(v.ticket) }

func (g *gate) ended(v *visit) {
	t := v.ticket
	g.outstanding(t, false)
	t.agent.release(t, v.phase == over)
	if v.phase == over {
		g.prices.Learn(cost.ClassOf(t.line.lane.key), 4*t.req.PromptTokens, 0, v.Prompt, v.out)
	}
}

func (g *gate) sample(unit int, s scheduler.Sample) { g.agents[unit].sample(s) }
