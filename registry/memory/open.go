package memory

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/door"
)

const noEngineRetry = 5 * time.Second

// Open creates the record and counts it, or refuses and leaves no count behind.
// Repeated for an id it knows it only says OK.
func (r *Registry) Open(_ context.Context, q registry.Request, d registry.Drain) (registry.Admission, error) {
	if q.ID == "" {
		return registry.Admission{}, errors.New("registry/memory: open without an id")
	}
	q.Tokens, q.Bytes = max(q.Tokens, 1), max(q.Bytes, 0)
	rank, bounds := r.cfg.Rank(q.Lane.Tier), r.bounds(q.Lane)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.records[q.ID]; rec != nil {
		return registry.Admission{Reason: reason.OK, Wait: rec.forecast.Wait}, nil
	}
	if d.Engines <= 0 {
		return registry.Admission{Reason: reason.NoEngine, RetryAfter: door.Told(noEngineRetry, q.ID)}, nil
	}
	standing := r.quota.Look(now, q.Limits, q.Tokens, q.Slept)
	if standing.Refused {
		a := door.Limited(&q, &standing)
		if a.Sleep > 0 && !q.Slept {
			r.quota.Promise(now, q.Limits, q.Tokens)
		}
		return a, nil
	}
	var own laneCount
	if l := r.lanes[q.Lane]; l != nil {
		own = *l
	}
	full := own.outstanding >= bounds.Requests ||
		own.bytes+charge(q.Bytes) > bounds.Bytes || r.bytes+charge(q.Bytes) > r.cfg.TotalBytes
	a, f := r.door.Judge(&door.Visitor{
		ID: q.ID, Lane: q.Lane, Rank: rank, Fingerprint: q.Fingerprint, Tokens: q.Tokens, Limit: q.Limit, Own: own.waiting, Rate: d.Rate, Full: full,
	}, now)
	a.Quota = standing
	if a.Reason != reason.OK {
		return a, nil
	}
	rec := &record{
		id: q.ID, reply: q.Reply, lane: q.Lane, state: registry.Queued,
		opened: now, deadline: q.Deadline, tokens: q.Tokens, bytes: charge(q.Bytes), forecast: f,
	}
	if len(q.Limits) > 0 {
		rec.charge = r.quota.Take(now, q.Limits, q.Tokens, q.Slept)
		r.totals.Reserved += int64(q.Tokens)
	}
	r.put(rec, now)
	r.count(rec, rank, now)
	return a, nil
}

// bounds are a lane's, at most the store's.
func (r *Registry) bounds(k lane.Key) registry.Bounds {
	b := r.cfg.Bounds(k)
	if b.Requests <= 0 || b.Requests > r.cfg.LaneRequests {
		b.Requests = r.cfg.LaneRequests
	}
	if b.Bytes <= 0 || b.Bytes > r.cfg.LaneBytes {
		b.Bytes = r.cfg.LaneBytes
	}
	return b
}

// charge is what a body of n bytes counts for.
func charge(n int) int64 { return int64(n) + recordBytes }

// count enters a queued record in its lane and in the backlog.
func (r *Registry) count(rec *record, rank int, now time.Time) {
	l := r.lanes[rec.lane]
	if l == nil {
		l = &laneCount{}
		r.lanes[rec.lane] = l
	}
	rec.counted, rec.rank = true, rank
	l.outstanding++
	l.bytes += rec.bytes
	r.bytes += rec.bytes
	r.queue(rec, now)
}

// uncount takes rec out of whatever it counts in.
func (r *Registry) uncount(rec *record, now time.Time) {
	if !rec.counted {
		return
	}
	if rec.state == registry.Queued {
		r.unqueue(rec, now)
	}
	rec.counted = false
	l := r.lanes[rec.lane]
	l.outstanding--
	l.bytes -= rec.bytes
	r.bytes -= rec.bytes
	if l.outstanding == 0 {
		delete(r.lanes, rec.lane)
	}
}

// queue adds rec to the backlog of its lane and class.
func (r *Registry) queue(rec *record, now time.Time) { r.shift(rec, 1, now) }

// unqueue takes it out again.
func (r *Registry) unqueue(rec *record, now time.Time) { r.shift(rec, -1, now) }

func (r *Registry) shift(rec *record, sign int, now time.Time) {
	if !rec.counted {
		return
	}
	r.door.Shift(rec.lane, rec.rank, rec.tokens, sign, &r.lanes[rec.lane].waiting, now)
}

// Backlog is what waits and runs, by model and tier. Classes with nothing are
// listed while they are remembered. It walks every record: for metrics.
func (r *Registry) Backlog(now time.Time) []registry.Backlog {
	r.mu.Lock()
	defer r.mu.Unlock()
	type key struct{ tier, model string }
	rows := map[key]registry.Backlog{}
	for _, row := range r.door.Waiting() {
		rows[key{row.Tier, row.Model}] = row
	}
	for _, rec := range r.live {
		if !rec.counted {
			continue
		}
		k := key{rec.lane.Tier, rec.lane.Model}
		row, ok := rows[k]
		if !ok { // the door has forgotten the model: long runs only
			row.Tier, row.Model = k.tier, k.model
		}
		if rec.state == registry.Queued {
			row.Bytes += rec.bytes
			row.Oldest = max(row.Oldest, now.Sub(rec.opened))
		} else {
			row.Running++
		}
		rows[k] = row
	}
	list := make([]registry.Backlog, 0, len(rows))
	for _, row := range rows {
		list = append(list, row)
	}
	slices.SortFunc(list, func(a, b registry.Backlog) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tier, b.Tier))
	})
	return list
}
