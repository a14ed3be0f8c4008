package memory

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

func limitsOf(tenant string) []quota.Limit {
	var all []quota.Limit
	for _, scope := range []string{quota.Tenant, quota.Key, quota.Model} {
		all = append(all, quota.Limit{Scope: scope, Bucket: tenant, Amount: 1 << 40, Per: time.Minute})
	}
	return append(all, quota.Limit{Scope: quota.Tenant, Bucket: tenant, Unit: quota.Requests, Amount: 1 << 40, Per: time.Minute})
}

// TestSettledIsUsed: after 10,000 requests that ended in every way there is, each call
// repeated or not, what is settled is what was used.
func TestSettledIsUsed(t *testing.T) {
	r := fresh(t, func(string, []byte) error { return nil })
	rnd, ctx := rand.New(rand.NewPCG(1, 2)), t.Context()
	var used, reserved int64
	for i := range 10_000 {
		id, tokens, u := strconv.Itoa(i), 1+rnd.IntN(4000), rnd.IntN(8000)
		q := registry.Request{ID: id, Lane: simLane, Reply: "g", Deadline: time.Now().Add(time.Minute), Tokens: tokens, Limit: time.Hour, Limits: limitsOf(strconv.Itoa(i % 50))}
		usage := quota.Usage{Prompt: u / 2, Output: u - u/2, Known: true}
		for range 1 + rnd.IntN(2) {
			if a, err := r.Open(ctx, q, registry.Drain{Engines: 1}); err != nil || a.Reason != reason.OK {
				t.Fatalf("open: %+v, %v", a, err)
			}
		}
		reserved += int64(tokens)
		run := func(attempt string) {
			if c, err := r.Claim(ctx, registry.Start{ID: id, Attempt: attempt, Owner: "o", Lane: simLane, Reply: "g"}); err != nil || c.Action != registry.Run {
				t.Fatalf("claim: %+v, %v", c, err)
			}
		}
		finish := func(attempt string, usage quota.Usage) {
			for range 1 + rnd.IntN(3) {
				if ok, err := r.Finish(ctx, id, attempt, nil, usage); !ok || err != nil {
					t.Fatalf("finish: %v, %v", ok, err)
				}
			}
		}
		switch rnd.IntN(7) {
		case 0: // the client left before it ran
			_, _ = r.Cancel(ctx, id, true)
			_, _ = r.Cancel(ctx, id, false)
		case 1: // dropped
			finish("", quota.Usage{Known: true})
		case 2: // no usage is said
			run("a")
			finish("a", quota.Usage{Output: u})
			used += int64(tokens)
		case 3: // the client left while it ran
			run("a")
			_, _ = r.First(ctx, id, "a", nil)
			_, _ = r.Cancel(ctx, id, false)
			finish("a", usage)
			used += int64(u)
		case 4: // run again
			run("a")
			_ = r.Release(ctx, id, "a", true)
			run("b")
			finish("b", usage)
			used += int64(u)
		case 5: // aborted while it was given back
			run("a")
			_, _ = r.Cancel(ctx, id, false)
			_ = r.Release(ctx, id, "a", true)
		default:
			run("a")
			_, _ = r.First(ctx, id, "a", nil)
			finish("a", usage)
			used += int64(u)
		}
	}
	if got := r.Quota(); got.Settled != used || got.Reserved != reserved {
		t.Errorf("%+v, want %d reserved and %d settled", got, reserved, used)
	}
}

// BenchmarkLimits is a request's open and finish under four limits.
func BenchmarkLimits(b *testing.B) {
	r := fresh(b, func(string, []byte) error { return nil })
	ctx, n, limits := b.Context(), 0, limitsOf("a")
	for b.Loop() {
		n++
		q := registry.Request{ID: strconv.Itoa(n), Lane: lane.Key{Model: "m"}, Reply: "g", Deadline: time.Now(), Tokens: 100, Limit: time.Hour, Limits: limits}
		if a, err := r.Open(ctx, q, registry.Drain{Engines: 1}); err != nil || a.Reason != reason.OK {
			b.Fatal(a, err)
		}
		_, _ = r.Finish(ctx, q.ID, "", nil, quota.Usage{Prompt: 50, Known: true})
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "opens/s")
}
