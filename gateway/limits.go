package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"penstock/gateway/headers"
	"penstock/quota"
	"penstock/registry"
)

// outageGap is after how long without a failure an outage counts as over.
const outageGap = 5 * time.Second

// held are the limits of the request in its lane. What counts requests and has counted
// this one in another lane does not count it again; tokens it took there are given back.
// A filter's question is the service's own.
func (x *exchange) held() []quota.Limit {
	if x.onward.filter != nil {
		return nil
	}
	all := x.policy.Limits(nil, &x.who, x.request.Model, x.class.Tier)
	if len(x.onward.charged) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(l quota.Limit) bool {
		return l.Unit == quota.Requests && slices.ContainsFunc(x.onward.charged, func(c quota.Limit) bool {
			return c.Unit == l.Unit && c.Scope == l.Scope && c.Bucket == l.Bucket && c.Per == l.Per && c.Window == l.Window
		})
	})
}

// open opens the request's record. Where a limit has room soon it sleeps until then, in
// all as long as quota.MaxWait and the client's patience allow.
func (x *exchange) open(q registry.Request, d registry.Drain) (a registry.Admission, err error) {
	now := time.Now()
	until := now.Add(min(smooth(&x.limits), q.Deadline.Sub(now)))
	for {
		q.Patience = max(time.Until(until), 0)
		ctx, cancel := context.WithTimeout(x.r.Context(), storeWait)
		err = x.persist(ctx, func() (err error) {
			a, err = x.g.deps.Records.Open(ctx, q, d)
			return err
		})
		cancel()
		if err != nil {
			return a, err
		}
		if x.g.outage.over(); a.Sleep <= 0 {
			return a, nil
		}
		pause := a.Sleep
		if q.Slept { // a debt came between: others wake with it
			pause = max(pause, storePause)
		}
		select {
		case <-time.After(pause):
		case <-x.r.Context().Done():
			return a, x.r.Context().Err()
		}
		q.Slept = true
	}
}

// smooth is how long a request may sleep until its limits have room.
func smooth(l *headers.Limits) time.Duration {
	most := min(quota.MaxWait, l.Deadline)
	if l.Patience > 0 {
		most = min(most, l.Patience)
	}
	return most
}

// outage is since when the record store does not answer.
type outage struct {
	mu          sync.Mutex
	since, last time.Time
}

// lasts notes a call that got no answer, and reports whether that has gone on for
// storePatience.
func (o *outage) lasts() bool {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.last) > outageGap {
		o.since = now
	}
	o.last = now
	return now.Sub(o.since) >= storePatience
}

// over notes that a record was opened or refused.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Time{}
}
