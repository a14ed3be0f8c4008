package memory

import (
	"container/heap"
	"context"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

// orphanWait is how long a request whose gateway is gone waits for it to be back,
// once: a new incarnation may only be late to show.
const orphanWait = 2 * time.Second

// suspendGrace is added to the end of another's ownership, so that the next
// delivery finds it past.
const suspendGrace = 50 * time.Millisecond

// Claim checks in the order of the protocol: done or cancelled, live owner,
// streaming past its ownership, tries, orphan, pace; only then it is the caller's.
func (r *Registry) Claim(_ context.Context, s registry.Start) (registry.Claim, error) {
	alive, pace, rank := r.cfg.Live(s.Reply), r.cfg.Pace(s.Lane), r.cfg.Rank(s.Lane.Tier)
	now := time.Now()
	r.mu.Lock()
	rec := r.records[s.ID]
	if rec == nil {
		if !now.Before(s.Deadline) {
			r.mu.Unlock()
			return registry.Claim{Action: registry.Ack, Reason: reason.DeadlinePassed}, nil
		}
		rec = &record{
			id: s.ID, reply: s.Reply, lane: s.Lane, state: registry.Queued,
			opened: now, deadline: s.Deadline, tokens: max(s.Tokens, 1),
		}
		r.put(rec, now)
		r.count(rec, rank, now)
	}
	c := r.claim(rec, s, now, alive, pace)
	return c, r.flush(rec)
}

func (r *Registry) claim(rec *record, s registry.Start, now time.Time, alive bool, pace float64) registry.Claim {
	switch owned := now.Before(rec.until); {
	case rec.state == registry.Finished:
		return registry.Claim{Action: registry.Ack, Reason: reason.AlreadyDone, Tries: rec.tries}
	case rec.canceled:
		if !owned {
			r.end(rec, now, r.cfg.Terminal(rec.id, rec.attempt, reason.Aborted), rec.unsettled())
		}
		return registry.Claim{Action: registry.Ack, Reason: reason.Aborted, Tries: rec.tries}
	case rec.state == registry.Running && rec.attempt == s.Attempt:
		rec.until = now.Add(registry.Ownership)
		return registry.Claim{Action: registry.Run, Reason: reason.OK, Tries: rec.tries}
	case rec.state != registry.Queued && owned:
		return registry.Claim{Action: registry.Suspend, After: rec.until.Sub(now) + suspendGrace, Reason: reason.LiveOwner, Tries: rec.tries}
	case rec.state == registry.Streaming:
		r.end(rec, now, r.cfg.Terminal(rec.id, rec.attempt, reason.UpstreamLost), rec.unsettled())
		return registry.Claim{Action: registry.Ack, Reason: reason.UpstreamLost, Tries: rec.tries}
	case rec.tries >= registry.MaxTries:
		r.end(rec, now, r.cfg.Terminal(rec.id, rec.attempt, reason.TriesUsed), rec.unsettled())
		return registry.Claim{Action: registry.Ack, Reason: reason.TriesUsed, Tries: rec.tries}
	case !alive && !rec.orphaned:
		rec.orphaned = true
		return registry.Claim{Action: registry.Suspend, After: orphanWait, Reason: reason.Orphan, Tries: rec.tries}
	case !alive:
		r.end(rec, now, nil, rec.unsettled())
		return registry.Claim{Action: registry.Ack, Reason: reason.Orphan, Tries: rec.tries}
	}
	if after := r.pace(rec.lane, pace, now); after > 0 {
		return registry.Claim{Action: registry.Suspend, After: after, Reason: reason.Paced, Tries: rec.tries}
	}
	r.start(rec, s, now)
	return registry.Claim{Action: registry.Run, Reason: reason.OK, Tries: rec.tries}
}

// start makes the caller the owner and takes the record out of the backlog.
func (r *Registry) start(rec *record, s registry.Start, now time.Time) {
	if rec.state == registry.Queued {
		r.unqueue(rec, now)
		r.door.Started(rec.lane, rec.tokens, rec.forecast, rec.tries > 0, rec.opened, now)
	}
	rec.state, rec.attempt, rec.owner = registry.Running, s.Attempt, s.Owner
	rec.tries++
	rec.orphaned = false
	r.prolong(rec, now)
}

// prolong gives the owner another term, and the record its time to live.
func (r *Registry) prolong(rec *record, now time.Time) {
	rec.until = now.Add(registry.Ownership)
	rec.expires = later(rec.deadline, now).Add(registry.Keep)
	heap.Fix(&r.live, rec.place)
}

// pace is how long the lane's next start must wait, 0 = it may start and is
// counted: a GCRA with a tolerance of one interval, at least 150 ms. In memory one
// head of a lane is out at a time, so the first free slot is the only one told.
func (r *Registry) pace(k lane.Key, rate float64, now time.Time) time.Duration {
	if rate <= 0 {
		return 0
	}
	interval := time.Duration(float64(time.Second) / rate)
	next := later(r.paced[k], now)
	if after := next.Sub(now) - max(interval, 150*time.Millisecond); after > 0 {
		return after
	}
	r.paced[k] = next.Add(interval)
	return 0
}
