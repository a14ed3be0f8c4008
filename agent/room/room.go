// Package room answers the heads that are delivered to an agent: at once, or after a
// wait for capacity that is about to come free. It asks scheduler who may start and who
// is first, and takes the place in the ledger together with the answer. It has no lock,
// clock or goroutine: the agent's mutex guards a Room and the scheduler's state.
package room

import (
	"slices"
	"time"

	"penstock/agent/state"
	"penstock/lane"
	"penstock/reason"
	"penstock/scheduler"
)

// Config of a Room.
type Config struct {
	Size    int // heads held, at most scheduler.MostHeads - 1; 0 = none
	PerLane int // of them, of one lane
	// Limit is how many of a lane may run at once; 0 = no limit.
	Limit func(k lane.Key) int
	// Barred is why nothing may start although the scheduler sees no reason.
	Barred func() (scheduler.Verdict, bool)
	// Told hears of every answer, and of every head that is held.
	Told func(now time.Time, id string, req *scheduler.Request, v scheduler.Verdict)
}

// Answer is what a head gets: the verdict, and with Start its place in the ledger.
type Answer struct {
	scheduler.Verdict
	Slot scheduler.Slot
}

// Head is a delivered request. Its answer comes once.
type Head struct {
	Answer <-chan Answer

	id     string
	lane   lane.Key
	hold   scheduler.Verdict // what holds it; its After counts when it leaves unstarted
	answer chan Answer       // of size 1
}

// Room holds the few heads that wait. heads and reqs run in parallel, since Pick reads
// requests alone.
type Room struct {
	cfg   Config
	sched *scheduler.State
	lanes lanes
	heads []*Head
	reqs  []scheduler.Request
}

// New is an empty room before sched.
func New(cfg Config, sched *scheduler.State) *Room {
	return &Room{
		cfg: cfg, sched: sched, lanes: newLanes(),
		heads: make([]*Head, 0, cfg.Size+1), reqs: make([]scheduler.Request, 0, cfg.Size+1),
	}
}

// Decide answers a delivered head or takes it in.
func (r *Room) Decide(now time.Time, id string, k lane.Key, req *scheduler.Request) *Head {
	h := &Head{id: id, lane: k, answer: make(chan Answer, 1)}
	h.Answer = h.answer
	v := r.judge(now, k, req)
	fits := r.of(k) < r.cfg.PerLane
	switch {
	case v.Action == scheduler.Start && len(r.heads) == 0, v.Action != scheduler.Start && v.Action != scheduler.Hold:
		r.tell(now, h, req, v)
		return h
	case v.Action == scheduler.Hold && !fits:
		r.tell(now, h, req, turnedAway(v))
		return h
	}
	// Capacity comes free soon, or it is free and others wait for it: Pick says who is
	// first.
	h.hold = v
	r.heads, r.reqs = append(r.heads, h), append(r.reqs, *req)
	stop := r.Fill(now)
	i := slices.Index(r.heads, h)
	if i < 0 {
		return h
	}
	if v.Action == scheduler.Start {
		h.hold = stop
	}
	switch {
	case !fits:
		r.leave(now, i, turnedAway(v))
	case len(r.heads) > r.cfg.Size:
		i = r.sched.Last(now, r.reqs)
		r.leave(now, i, turnedAway(r.heads[i].hold))
	}
	if slices.Contains(r.heads, h) {
		r.cfg.Told(now, id, req, h.hold)
	}
	return h
}

// judge is the scheduler's verdict, unless something bars a start.
func (r *Room) judge(now time.Time, k lane.Key, req *scheduler.Request) scheduler.Verdict {
	v := r.sched.Decide(now, req)
	if bar, barred := r.cfg.Barred(); v.Action == scheduler.Start && barred {
		bar.Action = scheduler.Suspend
		v = bar
	}
	if (v.Action == scheduler.Start || v.Action == scheduler.Hold) && r.full(k) {
		v = scheduler.Verdict{Action: scheduler.Suspend, Reason: reason.LaneLimit, After: LanePause}
	}
	return v
}

func turnedAway(held scheduler.Verdict) scheduler.Verdict {
	return scheduler.Verdict{Action: scheduler.Suspend, Reason: reason.RoomFull, After: held.After}
}

// Fill starts heads while Pick finds one that may, and returns what stops the next.
// Whatever can free capacity calls it.
func (r *Room) Fill(now time.Time) scheduler.Verdict {
	if bar, barred := r.cfg.Barred(); barred {
		bar.Action = scheduler.Hold
		return bar
	}
	for len(r.heads) > 0 {
		i, v := r.sched.Pick(now, r.reqs)
		if i < 0 {
			return v
		}
		r.leave(now, i, v)
	}
	return scheduler.Verdict{}
}

// Expire answers a head that has waited long enough, unless it has its answer.
func (r *Room) Expire(now time.Time, h *Head) {
	if i := slices.Index(r.heads, h); i >= 0 {
		r.leave(now, i, scheduler.Verdict{Action: scheduler.Suspend, Reason: h.hold.Reason, After: h.hold.After})
	}
}

// Drop takes out the head of an aborted request, if it is here.
func (r *Room) Drop(now time.Time, id string) {
	if i := slices.IndexFunc(r.heads, func(h *Head) bool { return h.id == id }); i >= 0 {
		r.leave(now, i, scheduler.Verdict{Action: scheduler.Drop, Reason: reason.Aborted})
	}
}

// Empty suspends all heads for why.
func (r *Room) Empty(now time.Time, why reason.Reason) {
	for len(r.heads) > 0 {
		r.leave(now, 0, scheduler.Verdict{Action: scheduler.Suspend, Reason: why, After: r.heads[0].hold.After})
	}
}

// Rank gives what is held its place in new tiers.
func (r *Room) Rank(tiers []scheduler.Tier) {
	for i := range r.reqs {
		r.reqs[i].Tier = scheduler.Rank(tiers, r.heads[i].lane.Tier)
	}
}

// Held is who waits here.
func (r *Room) Held() (all []state.Held) {
	for _, h := range r.heads {
		all = append(all, state.Held{ID: h.id, Lane: h.lane.String(), Reason: h.hold.Reason.String()})
	}
	return all
}

// of is how many of a lane are here.
func (r *Room) of(k lane.Key) (n int) {
	for _, h := range r.heads {
		if h.lane == k {
			n++
		}
	}
	return n
}

// leave takes head i out and tells it v.
func (r *Room) leave(now time.Time, i int, v scheduler.Verdict) {
	h, req := r.heads[i], r.reqs[i]
	r.heads, r.reqs = slices.Delete(r.heads, i, i+1), slices.Delete(r.reqs, i, i+1)
	r.tell(now, h, &req, v)
}

// tell answers h. With Start its place in the ledger and in its lane is taken.
func (r *Room) tell(now time.Time, h *Head, req *scheduler.Request, v scheduler.Verdict) {
	a := Answer{Verdict: v}
	if v.Action == scheduler.Start {
		a.Slot = r.sched.Reserve(now, req)
		r.lanes.running[h.lane]++
	}
	r.cfg.Told(now, h.id, req, v)
	h.answer <- a
}
