package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"penstock/gateway/headers"
	"penstock/gateway/refuse"
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

// limited is the refusal of a request by one of its limits.
func limited(q *registry.Request, a *registry.Admission) *refuse.Refusal {
	l := &q.Limits[a.Quota.Tripped]
	what := fmt.Sprintf("%d %s per %s", l.Amount, l.Unit, perText(l.Per))
	f := &refuse.Refusal{Reason: a.Reason, Model: q.Lane.Model, Wait: a.Quota.Wait, Retry: a.RetryAfter, Detail: "Your limit of " + what + " is reached."}
	switch {
	case l.Budget() && a.Quota.Rooms[a.Quota.Tripped].Remaining > 0 && l.Unit == quota.Tokens:
		f.Retry, f.Detail = 0, fmt.Sprintf("Your budget of %s has %d left, and this request is expected to take %d. Lower max_tokens, or ask whoever runs this service for more.",
			what, a.Quota.Rooms[a.Quota.Tripped].Remaining, q.Tokens)
	case l.Budget():
		f.Retry, f.Detail = 0, "Your budget of "+what+" is used up. Ask whoever runs this service for more."
	case l.Scope == quota.Tier:
		f.Detail = "The limit of " + what + " that you share with others is reached."
	case l.Scope == quota.Model:
		f.Detail = fmt.Sprintf("Your limit of %s for model '%s' is reached.", what, q.Lane.Model)
	case l.Scope == quota.Key:
		f.Detail = "The limit of " + what + " of this API key is reached."
	}
	return f
}

// perText is a limit's time, "minute" rather than "1m0s".
func perText(d time.Duration) string {
	switch d {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	case quota.Day:
		return "day"
	}
	if d%quota.Day == 0 {
		return strconv.Itoa(int(d/quota.Day)) + " days"
	}
	return d.String()
}

// showLimits sets the x-ratelimit headers: per unit the limit with least left, or the
// one that refused the request; none where v says nothing. Resets are durations as Go writes them, "1m2.5s".
func showLimits(h http.Header, all []quota.Limit, v *quota.Verdict) {
	if *v == (quota.Verdict{}) {
		return
	}
	for unit, name := range [...]string{quota.Tokens: "Tokens", quota.Requests: "Requests"} {
		i := v.Tightest(all, quota.Unit(unit))
		if v.Refused && all[v.Tripped].Unit == quota.Unit(unit) {
			i = v.Tripped
		}
		if i < 0 {
			continue
		}
		h.Set("X-Ratelimit-Limit-"+name, strconv.FormatInt(all[i].Amount, 10))
		h.Set("X-Ratelimit-Remaining-"+name, strconv.FormatInt(v.Rooms[i].Remaining, 10))
		h.Set("X-Ratelimit-Reset-"+name, v.Rooms[i].Reset.String())
	}
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
