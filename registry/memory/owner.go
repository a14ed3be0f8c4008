package memory

import (
	"container/heap"
	"context"
	"time"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/door"
)

// Renew prolongs what owner runs and returns what it has lost. A record that is
// not there is written again, outside any lane's count.
func (r *Registry) Renew(_ context.Context, owner string, running []registry.Ref) (lost []registry.Ref, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range running {
		rec := r.records[ref.ID]
		if rec == nil {
			rec = &record{id: ref.ID, reply: ref.Reply, attempt: ref.Attempt, state: registry.Running, opened: now, tries: 1}
			if ref.Streaming {
				rec.state = registry.Streaming
			}
			r.put(rec, now)
		}
		if rec.canceled || rec.attempt != ref.Attempt || (rec.state != registry.Running && rec.state != registry.Streaming) {
			lost = append(lost, ref)
			continue
		}
		rec.owner = owner
		r.prolong(rec, now)
	}
	return lost, nil
}

// First moves the attempt from running to streaming and appends its first event;
// repeated it only says true. An error is from appending: the record has moved on.
func (r *Registry) First(_ context.Context, id, attempt string, event []byte) (bool, error) {
	now := time.Now()
	r.mu.Lock()
	rec := r.records[id]
	if rec == nil || rec.canceled || rec.attempt != attempt || (rec.state != registry.Running && rec.state != registry.Streaming) {
		r.mu.Unlock()
		return false, nil
	}
	if rec.state == registry.Running {
		rec.state = registry.Streaming
		rec.out = append(rec.out, event)
		r.prolong(rec, now)
	}
	return true, r.flush(rec)
}

// Finish ends the record with its terminal event, once. An error is from
// appending: the record is finished all the same.
func (r *Registry) Finish(_ context.Context, id, attempt string, event []byte, used quota.Usage) (bool, error) {
	now := time.Now()
	r.mu.Lock()
	rec := r.records[id]
	if rec == nil || rec.state == registry.Finished {
		r.mu.Unlock()
		return true, nil
	}
	if rec.state != registry.Queued && rec.attempt != attempt {
		if now.Before(rec.until) {
			r.mu.Unlock()
			return false, nil
		}
		if rec.state == registry.Streaming {
			// The client is bound to the dead attempt and would not hear this one.
			event, used = r.cfg.Terminal(id, rec.attempt, reason.UpstreamLost), quota.Usage{}
		}
	}
	r.end(rec, now, event, used.Tokens())
	return true, r.flush(rec)
}

// Release gives a running attempt back to its lane, or ends it where it was
// cancelled meanwhile. Any other attempt or state is left alone.
func (r *Registry) Release(_ context.Context, id, attempt string, blameless bool) error {
	now := time.Now()
	r.mu.Lock()
	rec := r.records[id]
	if rec == nil || rec.state != registry.Running || rec.attempt != attempt {
		r.mu.Unlock()
		return nil
	}
	if rec.canceled {
		r.end(rec, now, r.cfg.Terminal(id, attempt, reason.Aborted), 0)
	} else {
		if blameless {
			rec.tries--
		}
		rec.state, rec.attempt, rec.owner, rec.until = registry.Queued, "", "", time.Time{}
		rec.forecast = door.Forecast{} // its wait says nothing about the forecast any more
		r.queue(rec, now)
	}
	return r.flush(rec)
}

// Cancel ends a request that nobody runs, without an event: the caller is the one
// who waits. A running one is marked and its owner told, each time it is called.
func (r *Registry) Cancel(_ context.Context, id string, onlyIfQueued bool) (registry.Canceled, error) {
	now := time.Now()
	r.mu.Lock()
	rec := r.records[id]
	if rec == nil {
		r.mu.Unlock()
		return registry.Canceled{}, nil
	}
	c := registry.Canceled{State: rec.state, Owner: rec.owner, Attempt: rec.attempt}
	switch dead := !now.Before(rec.until); {
	case rec.state == registry.Finished, rec.state == registry.Streaming && onlyIfQueued, rec.state == registry.Running && onlyIfQueued && !dead:
		r.mu.Unlock()
		return c, nil
	case dead:
		// Queued, or its owner is gone: nobody else would end it.
		if rec.state == registry.Running {
			c.State = registry.Queued
		}
		r.end(rec, now, nil, rec.unsettled())
	case !rec.canceled:
		rec.canceled = true
		rec.expires = now.Add(silent) // its owner finishes it, or is dead by then
		heap.Fix(&r.live, rec.place)
	}
	r.mu.Unlock()
	r.cancel(c.Owner, id, c.Attempt)
	return c, nil
}
