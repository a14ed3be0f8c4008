package redis

import (
	"penstock/quota"
	"penstock/registry/redis/script"
)

// Quota is what this process's calls took from limits, in tokens, since the start.
func (r *Registry) Quota() quota.Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.totals
}

func (r *Registry) reserved(tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Reserved += int64(tokens)
}

// settled counts what a call has settled: tokens used and given back, from value i of
// its answer on.
func (r *Registry) settled(answer *script.Answer, i int) {
	if answer.Len() < i+2 || answer.Int(i)+answer.Int(i+1) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Settled += int64(answer.Int(i))
	r.totals.Refunded += int64(answer.Int(i + 1))
}
