package scheduler

import (
	"time"

	"penstock/reason"
	"penstock/scheduler/forecast"
	"penstock/scheduler/order"
)

const (
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

// Pick says which of the heads in the ready room to act on now: to Start, Drop or
// Suspend (a peer is free for it). They are tried in their order; one that is stopped
// keeps out those of later tiers, and late ones of its own if it is in time. Index
// -1: none may start, and the Verdict says why; call it again after every event
// and after every index >= 0. At most MostHeads are looked at; the zero Verdict is for
// none at all.
func (s *State) Pick(now time.Time, heads []Request) (int, Verdict) {
	t := s.since(now)
	s.flow.roll(t, s.closed)
	s.queue.Relieve(t)
	heads = heads[:min(len(heads), MostHeads)]
	for i := range heads {
		if why := s.dead(now, &heads[i]); why != reason.None {
			s.queue.Forget(t, heads[i].Hash)
			return i, Verdict{Action: Drop, Reason: why}
		}
	}
	first, stop, firstWhy := -1, -1, reason.None
	var all [MostHeads]order.Turn
	turns := s.turns(&all, t, heads)
	var tried uint64
	for range heads {
		i := next(turns, tried)
		if stop >= 0 && s.queue.StoppedBy(&turns[i], &turns[stop]) {
			break
		}
		tried |= 1 << i
		why, late := s.judge(now, t, &heads[i])
		if why == reason.OK {
			h := s.head(t, &heads[i])
			why = s.queue.Yield(t, s.first(), &h, late)
		}
		if why == reason.OK || s.probe(t, why) {
			return i, s.startAs(why)
		}
		if first < 0 {
			first, firstWhy = i, why
		}
		if why == reason.KVBand {
			break // else who has more heads draws more often
		}
		if stop < 0 && !turns[i].Aged() && why != reason.TierCeiling {
			stop = i
		}
	}
	if first < 0 {
		return -1, Verdict{}
	}
	v := s.refuse(now, t, &heads[first], firstWhy)
	if v.Reason == reason.PeerFree {
		return first, v
	}
	return -1, v
}

// Last is the head that others in the ready room go before: the one to leave when it
// is full. heads has at least one, at most MostHeads.
func (s *State) Last(now time.Time, heads []Request) int {
	var all [MostHeads]order.Turn
	turns, last := s.turns(&all, s.since(now), heads), 0
	for i := range turns {
		if turns[last].Before(&turns[i]) {
			last = i
		}
	}
	return last
}

// MostHeads is how many heads the ready room may have.
const MostHeads = 32

// turns are those of heads, in their order.
func (s *State) turns(all *[MostHeads]order.Turn, t time.Duration, heads []Request) []order.Turn {
	first := s.first()
	for i := range heads {
		h := s.head(t, &heads[i])
		all[i] = s.queue.Turn(t, first, &h)
	}
	return all[:len(heads)]
}

// next is the first in order of those not tried.
func next(turns []order.Turn, tried uint64) int {
	best := -1
	for i := range turns {
		if tried&(1<<i) == 0 && (best < 0 || turns[i].Before(&turns[best])) {
			best = i
		}
	}
	return best
}

// startAs starts a head that the law lets through, or one that probes.
func (s *State) startAs(why reason.Reason) Verdict {
	if s.probing = why != reason.OK; s.probing {
		why = reason.Probe
	}
	return Verdict{Action: Start, Reason: why}
}

// refuse makes "not now" of a reason: who else may take it, hold or suspend, and
// for how long.
func (s *State) refuse(now time.Time, t time.Duration, r *Request, why reason.Reason) Verdict {
	h := s.head(t, r)
	e, rank, ahead := s.queue.Note(t, s.first(), &h)
	v := Verdict{Action: Suspend, Reason: why}
	switch why {
	case reason.Blind, reason.Stuck, reason.Asleep, reason.Draining:
		v.After = statePause
	case reason.Starting:
		v.After = startPause
	default:
		e.Room = why != reason.TierCeiling && why != reason.TierTurn && why != reason.TenantTurn && why != reason.Late
		s.flow.limited = s.flow.limited || e.Room || why == reason.Late // its tier's or tenant's turn says nothing of the engine
		v.After = s.pause(rank, r, why)
		if s.soon(why) && (s.cfg.Ready == 0 || rank <= s.cfg.Ready) && !(ahead && s.late(t, r)) { // the ready room is for heads in time, while there are any
			v.Action, e.Held = Hold, true
		}
	}
	if e.Passes < maxPasses && s.pass(now, r) {
		e.Passes++
		e.Held, e.Room = false, false
		return Verdict{Action: Suspend, Reason: reason.PeerFree, After: minPause}
	}
	v.After += time.Duration(draw(r.Hash, uint64(now.Unix())) * float64(v.After) / 8)
	if s.frozen(why) {
		v.After = min(v.After, s.nextProbe()-t)
	}
	if !r.Deadline.IsZero() {
		v.After = min(v.After, r.Deadline.Sub(now)+minPause)
	}
	v.After = min(max(v.After, minPause), maxPause)
	e.Back = t + min(v.After, backMost) + backLate
	return v
}

// pause is when a head of this rank has its turn, a little early. Where prefill
// is in the way its turn comes by the prefill rate, which reacts at once.
func (s *State) pause(rank int, r *Request, why reason.Reason) time.Duration {
	starts := s.flow.recent()
	switch why {
	case reason.PrefillBusy, reason.WaitingSome, reason.WaitingHigh, reason.SeatsFull, reason.Late:
		starts = max(starts, s.speed.Rate()/float64(max(s.prompt(r), 1)))
	case reason.Cold:
		starts = maxStarts
	}
	return forecast.Seconds(0.8 * float64(rank) / min(max(starts, minStarts), maxStarts))
}

// soon reports whether what is in the way may be gone within the ready room's
// half second.
func (s *State) soon(why reason.Reason) bool {
	switch why {
	case reason.KVHigh:
		start, _, _ := s.marks()
		return s.kv() < start
	case reason.WaitingHigh:
		return s.sample.Waiting < s.cfg.WaitMax
	}
	return true
}

// pass reports whether a peer can start the request now, and notes that it will.
func (s *State) pass(now time.Time, r *Request) bool {
	need := max(s.prompt(r), 1)
	for i := range s.peers {
		p := &s.peers[i]
		if p.CanStart && p.Freeness >= need && now.Sub(p.At) <= peerFresh {
			p.Freeness -= need
			return true
		}
	}
	return false
}
