package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"

	"penstock/quota"
)

// limitArgs adds limits to a call of open, as lua/quota.lua reads them.
func limitArgs(args []any, limits []quota.Limit) []any {
	for i := range limits {
		l := &limits[i]
		unit, kind, slice := "t", "l", ""
		if l.Unit == quota.Requests {
			unit = "r"
		}
		if l.Window {
			kind = "w"
		}
		if l.Own > 0 {
			slice = bucketID(l, "slice", l.Slice)
		}
		args = append(args, bucketID(l, l.Scope, l.Bucket), unit, l.Amount, l.Per.Milliseconds(), kind, l.Own, slice)
	}
	return args
}

// bucketID is 22 characters whatever the name holds. Limits that count otherwise have
// other buckets, as in package quota.
func bucketID(l *quota.Limit, scope, name string) string {
	text := append(make([]byte, 0, 128), l.Unit.String()...)
	text = append(append(append(text, 0), scope...), 0)
	if l.Window {
		text = strconv.AppendInt(text, l.Per.Milliseconds(), 10)
	}
	sum := sha256.Sum256(append(append(text, 0), name...))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// verdict reads how n limits stand from the answer of open; it says nothing where the
// request was open already.
func verdict(r *row, n int) (v quota.Verdict) {
	if n == 0 || len(r.values) < 9+2*n {
		return v
	}
	if tripped := r.int(7); tripped > 0 {
		v.Refused, v.Tripped, v.Wait = true, min(tripped, n)-1, r.millis(8)
	}
	for i := range min(n, quota.MaxLimits) {
		v.Rooms[i] = quota.Room{Remaining: int64(r.float(9 + 2*i)), Reset: r.millis(10 + 2*i)}
	}
	return v
}

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
func (r *Registry) settled(answer *row, i int) {
	if len(answer.values) < i+2 || answer.int(i)+answer.int(i+1) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Settled += int64(answer.int(i))
	r.totals.Refunded += int64(answer.int(i + 1))
}
