package scheduler

import (
	"time"

	"penstock/reason"
)

// Pick says which of the heads in the ready room to act on now: to Start, Drop or
// Suspend (a peer is free for it). Heads in time go before late ones, then the
// longest waiting; a late one starts only when none in time is among them. Index
// -1: none may start, and the Verdict says why; call it again after every event
// and after every index >= 0. At most 64 heads are looked at; the zero Verdict is for
// none at all.
func (s *State) Pick(now time.Time, heads []Request) (int, Verdict) {
	t := s.since(now)
	s.flow.roll(t, s.closed)
	heads = heads[:min(len(heads), 64)]
	for i := range heads {
		if why := s.dead(now, &heads[i]); why != reason.None {
			s.heads.remove(heads[i].Hash)
			return i, Verdict{Action: Drop, Reason: why}
		}
	}
	var tried uint64
	first, firstLate, firstWhy := -1, false, reason.None
	for range heads {
		i, late := s.next(t, heads, tried)
		if late && first >= 0 && !firstLate {
			break // a head in time wants the room
		}
		tried |= 1 << i
		why, _ := s.judge(now, t, &heads[i])
		if why == reason.OK || s.probe(t, why) {
			return i, s.startAs(why)
		}
		if first < 0 {
			first, firstLate, firstWhy = i, late, why
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

// next is the head to look at first among those not tried.
func (s *State) next(t time.Duration, heads []Request, tried uint64) (best int, bestLate bool) {
	best = -1
	for i := range heads {
		if tried&(1<<i) != 0 {
			continue
		}
		r, late := &heads[i], s.late(t, &heads[i])
		if best >= 0 {
			b := &heads[best]
			if late != bestLate {
				if late {
					continue
				}
			} else if c := r.Opened.Compare(b.Opened); c > 0 || (c == 0 && r.Hash >= b.Hash) {
				continue
			}
		}
		best, bestLate = i, late
	}
	return best, bestLate
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
	opened := t
	if !r.Opened.IsZero() {
		opened = s.since(r.Opened)
	}
	e, rank, ahead := s.heads.note(t, s.speed.predict(s.pendTokens), head{hash: r.Hash, opened: opened, slo: opened + s.slo(r)})
	v := Verdict{Action: Suspend, Reason: why}
	switch why {
	case reason.Blind, reason.Stuck, reason.Asleep, reason.Draining:
		v.After = statePause
	case reason.Starting:
		v.After = startPause
	default:
		s.flow.limited = true
		v.After = s.pause(rank, r, why)
		if s.soon(why) && !(ahead && s.late(t, r)) { // the ready room is for heads in time, while there are any
			v.Action, e.held = Hold, true
		}
	}
	if e.passes < maxPasses && s.pass(now, r) {
		e.passes++
		e.held = false
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
	return v
}

// pause is when a head of this rank has its turn, a little early. Where prefill
// is in the way its turn comes by the prefill rate, which reacts at once.
func (s *State) pause(rank int, r *Request, why reason.Reason) time.Duration {
	starts := s.flow.recent()
	switch why {
	case reason.PrefillBusy, reason.WaitingSome, reason.WaitingHigh, reason.Late:
		starts = max(starts, s.speed.rate()/float64(max(r.prompt(), 1)))
	case reason.Cold:
		starts = maxStarts
	}
	return seconds(0.8 * float64(rank) / min(max(starts, minStarts), maxStarts))
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
	need := max(r.prompt(), 1)
	for i := range s.peers {
		p := &s.peers[i]
		if p.CanStart && p.Freeness >= need && now.Sub(p.At) <= peerFresh {
			p.Freeness -= need
			return true
		}
	}
	return false
}
