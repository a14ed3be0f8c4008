package door

import (
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// Limited is the answer to a request that one of its limits has no room for: v says
// which, and when it has. q is refused, or told to sleep where it has the patience.
func Limited(q *registry.Request, v *quota.Verdict) registry.Admission {
	a := registry.Admission{Reason: reason.RateLimited, RetryAfter: Told(v.Wait, q.ID), Quota: *v}
	switch {
	case q.Limits[v.Tripped].Budget():
		a.Reason = reason.BudgetSpent
	case v.Wait <= q.Patience:
		a.Sleep = v.Wait
	}
	return a
}
