package refuse

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"penstock/quota"
	"penstock/registry"
)

// Limited is the refusal of a request by one of its limits.
func Limited(q *registry.Request, a *registry.Admission) *Refusal {
	l := &q.Limits[a.Quota.Tripped]
	what := fmt.Sprintf("%d %s per %s", l.Amount, l.Unit, perText(l.Per))
	f := &Refusal{Reason: a.Reason, Model: q.Lane.Model, Wait: a.Quota.Wait, Retry: a.RetryAfter, Detail: "Your limit of " + what + " is reached."}
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

// ShowLimits sets the x-ratelimit headers: per unit the limit with least left, or the
// one that refused the request; none where v says nothing. Resets are durations as Go writes them, "1m2.5s".
func ShowLimits(h http.Header, all []quota.Limit, v *quota.Verdict) {
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
