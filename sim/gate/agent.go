package gate

import (
	"slices"
	"time"

	"penstock/fleet"
	"penstock/reason"
	"penstock/scheduler"
)

// agent repeats package agent's order of calls to the scheduler, without its IO:
// core.go's decide, fill, expire, release and progress, room.go's bounds.
type agent struct {
	g     *Gate
	unit  int
	sched *scheduler.State
	heads []*ticket // in the room
	reqs  []scheduler.Request
	peers []scheduler.Peer
	row   fleet.Row

	counted time.Duration // when it was last told of tiers' backlogs
}

// backlogEvery is how often agent/run.go reads them.
const backlogEvery = time.Second

func (a *agent) now() time.Time { return a.g.w.Time() }

// handle answers a delivery, or takes it into the room.
func (a *agent) handle(t *ticket) {
	v := a.sched.Decide(a.now(), &t.req)
	if v.Action == scheduler.Start && len(a.heads) == 0 {
		a.answer(t, v)
		return
	}
	if v.Action != scheduler.Start && v.Action != scheduler.Hold {
		a.answer(t, v)
		return
	}
	fits := a.free(t.line.lane)
	full := scheduler.Verdict{Action: scheduler.Suspend, Reason: reason.RoomFull, After: v.After}
	if v.Action == scheduler.Hold && !fits {
		a.answer(t, full)
		return
	}
	t.hold, t.entered = v, a.g.w.Now
	a.heads, a.reqs = append(a.heads, t), append(a.reqs, t.req)
	refused := a.fill()
	i := slices.Index(a.heads, t)
	if i >= 0 && v.Action == scheduler.Start {
		t.hold = refused
	}
	if i >= 0 && fits && len(a.heads) > roomSize {
		fits = false
		i = a.sched.Last(a.now(), a.reqs)
		full.After = a.heads[i].hold.After
	}
	if i >= 0 && !fits {
		a.leave(i, full)
	}
	if slices.Contains(a.heads, t) {
		entered := t.entered
		a.g.w.After(roomHold, func() {
			if i := slices.Index(a.heads, t); i >= 0 && t.entered == entered {
				a.leave(i, scheduler.Verdict{Action: scheduler.Suspend, Reason: t.hold.Reason, After: t.hold.After})
			}
		})
	}
}

// free reports whether the room has a place for a head of this lane.
func (a *agent) free(l *lanes) bool {
	n := 0
	for _, t := range a.heads {
		if t.line.lane == l {
			n++
		}
	}
	return n < roomPerLane
}

// fill starts heads from the room while Pick finds one that may.
func (a *agent) fill() scheduler.Verdict {
	for len(a.heads) > 0 {
		i, v := a.sched.Pick(a.now(), a.reqs)
		if i < 0 {
			return v
		}
		a.leave(i, v)
	}
	return scheduler.Verdict{}
}

func (a *agent) leave(i int, v scheduler.Verdict) {
	t := a.heads[i]
	a.heads, a.reqs = slices.Delete(a.heads, i, i+1), slices.Delete(a.reqs, i, i+1)
	a.answer(t, v)
}

// answer acts on a verdict. The ledger's place is taken at once; what follows comes
// after the caller is done, as in production, where another goroutine does it.
func (a *agent) answer(t *ticket, v scheduler.Verdict) {
	a.g.cfg.Told(v)
	w := a.g.w
	switch v.Action {
	case scheduler.Start:
		t.slot = a.sched.Reserve(a.now(), &t.req)
		w.After(0, func() { a.start(t) })
	case scheduler.Drop:
		w.After(0, func() {
			if !t.req.Aborted {
				a.g.outstanding(t, false)
				a.g.left(t)
				w.Refuse(t.v, 0)
			}
			a.g.settled(t)
		})
	default:
		w.After(0, func() {
			if t.req.Aborted {
				a.g.settled(t)
				return
			}
			a.g.suspended(t, v.After)
		})
	}
}

// start claims the record, lets the lane go on and calls the engine.
func (a *agent) start(t *ticket) {
	if t.req.Aborted { // the claim says that it is over
		a.release(t, false)
		a.g.settled(t)
		return
	}
	a.g.count(t, -1)
	a.g.door.Started(t.line.lane.key, t.tokens, t.forecast, false, t.req.Opened, a.now())
	a.g.settled(t)
	a.g.w.Submit(t.v, a.unit)
}

// gone drops an aborted request's head from the room, or gives its place in the
// ledger back when its connection is cut.
func (a *agent) gone(t *ticket) {
	if i := slices.Index(a.heads, t); i >= 0 {
		a.leave(i, scheduler.Verdict{Action: scheduler.Drop, Reason: reason.Aborted})
		return
	}
	if !t.counted && t.line.deciding != t {
		a.release(t, false)
	}
}

func (a *agent) release(t *ticket, finished bool) {
	if t.slot == 0 {
		return
	}
	if finished {
		a.sched.Finish(a.now(), t.slot)
	} else {
		a.sched.Release(a.now(), t.slot)
	}
	t.slot = 0
	a.fill()
}

func (a *agent) progress(t *ticket) {
	a.sched.Progress(a.now(), t.slot, t.v.Prompt, t.v.Out)
	if !t.begun { // its prefill is over: the next one may begin
		t.begun = true
		a.fill()
	}
}

// sample takes a page and writes the row that the door goes by.
func (a *agent) sample(s scheduler.Sample) {
	a.peers = a.peers[:0]
	for _, o := range a.g.agents {
		if o != a && !a.g.cfg.Alone && o.row.Serves(model, a.now()) {
			a.peers = append(a.peers, scheduler.Peer{CanStart: o.row.State == reason.OK && o.row.Freeness > 0, Freeness: o.row.Freeness, At: o.row.At})
		}
	}
	a.sched.SetPeers(a.peers)
	if a.g.w.Now >= a.counted+backlogEvery {
		a.counted = a.g.w.Now
		for _, l := range a.g.lanes {
			a.sched.SetBacklog(l.rank, l.own.Requests) // a tier has one lane, or all are of one tier
		}
	}
	a.sched.Observe(a.now(), s)
	a.fill()
	v := a.sched.View(a.now())
	if v.Gate != reason.OK {
		v.Freeness = 0
	}
	a.row = fleet.Row{
		Engine: fleet.ID(string(rune('a' + a.unit))), Models: fleet.Models(model), State: v.Condition, Freeness: v.Freeness,
		DrainRate: v.DrainRate, FirstToken: v.FirstToken, Start: v.Start, At: a.now(),
	}
}
