package registrytest

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// tenantLimit leaks 100 tokens a second and holds 5,000.
var tenantLimit = quota.Limit{Scope: quota.Tenant, Bucket: "a", Amount: 6000, Per: time.Minute}

// late is how much a bucket may leak while a slow store is asked.
const late = 200

// ask opens a request under limits, in a lane of its own.
func (r *rig) ask(id string, tokens int, limits ...quota.Limit) registry.Admission {
	r.Helper()
	k := lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: "lane of " + id}
	return r.openAs(registry.Request{ID: id, Lane: k, Tokens: tokens, Limits: limits, Patience: quota.MaxWait}, engines)
}

func (r *rig) let(id string, tokens int, limits ...quota.Limit) registry.Admission {
	r.Helper()
	a := r.ask(id, tokens, limits...)
	if a.Reason != reason.OK || a.Quota.Refused {
		r.Fatalf("open %s of %d tokens: %+v, want ok", id, tokens, a)
	}
	return a
}

// refused wants limit i to have refused a request.
func (r *rig) refused(id string, tokens, i int, limits ...quota.Limit) registry.Admission {
	r.Helper()
	held := r.Held()
	a := r.ask(id, tokens, limits...)
	if a.Reason != reason.RateLimited || !a.Quota.Refused || a.Quota.Tripped != i || a.Quota.Wait <= 0 ||
		a.RetryAfter < time.Second || a.RetryAfter > time.Minute || a.RetryAfter%time.Second != 0 {
		r.Fatalf("open %s of %d tokens: %+v, want limit %d to refuse it for whole seconds", id, tokens, a, i)
	}
	if got := r.Held(); got != held {
		r.Fatalf("%d records and lanes after a refusal, %d before", got, held)
	}
	return a
}

// left wants that much of a limit to be left.
func (r *rig) left(l quota.Limit, want int64) {
	r.Helper()
	r.probes++
	probe := fmt.Sprint("probe ", r.probes)
	a := r.ask(probe, 1, l)
	got := a.Quota.Rooms[0].Remaining
	if a.Reason == reason.OK {
		got++
		_, err := r.Records.Cancel(r.ctx, probe, true)
		r.ok(err)
	}
	if got < want || got > want+late {
		r.Fatalf("%d left of %+v, want %d", got, l, want)
	}
}

func (r *rig) spent(id, attempt string, used quota.Usage) {
	r.Helper()
	if ok, err := r.Records.Finish(r.ctx, id, attempt, []byte("end"), used); !ok || err != nil {
		r.Fatalf("finish %s: %v, %v", id, ok, err)
	}
}

func testLimits(r *rig) {
	key := quota.Limit{Scope: quota.Key, Bucket: "a", Amount: 600, Per: time.Minute} // holds 500
	calls := quota.Limit{Scope: quota.Tenant, Bucket: "a", Unit: quota.Requests, Amount: 6, Per: time.Minute}
	r.let("1", 500, tenantLimit, key, calls)
	r.left(tenantLimit, 4500)
	r.refused("2", 400, 1, tenantLimit, key, calls)
	r.left(tenantLimit, 4500) // nothing was taken of the others
	for i := range 4 {
		r.let(strconv.Itoa(i+3), 1, tenantLimit, calls)
	}
	r.refused("7", 1, 1, tenantLimit, calls)
	a, err := r.Records.Open(r.ctx, registry.Request{ID: "1", Lane: chat, Tokens: 500, Limits: []quota.Limit{tenantLimit}, Limit: time.Hour}, engines)
	if r.ok(err); a.Reason != reason.OK {
		r.Errorf("open again: %+v, want ok", a)
	}
	r.left(tenantLimit, 4496) // taken once
	other := tenantLimit
	other.Bucket = "b"
	r.let("8", 5000, other)
	if a := r.openAs(registry.Request{ID: "none", Lane: chat, Tokens: 100, Limits: []quota.Limit{tenantLimit}}, registry.Drain{}); a.Reason != reason.NoEngine {
		r.Errorf("open without an engine: %+v", a)
	}
	r.left(tenantLimit, 4496) // a refusal for another reason takes nothing
}

func testLimitSleep(r *rig) {
	r.let("1", 5000, tenantLimit)
	first := r.refused("2", 200, 0, tenantLimit)
	second := r.refused("3", 200, 0, tenantLimit)
	if first.Sleep < 1500*time.Millisecond || first.Sleep > 2100*time.Millisecond || second.Sleep < first.Sleep+1500*time.Millisecond {
		r.Fatalf("two that may sleep: %v and %v, want about 2 s and 2 s more", first.Sleep, second.Sleep)
	}
	if a := r.refused("4", 3000, 0, tenantLimit); a.Sleep != 0 {
		r.Errorf("sleep of %v past the patience, want a refusal", a.Sleep)
	}
	again := registry.Request{ID: "2", Lane: chat, Tokens: 200, Limits: []quota.Limit{tenantLimit}, Patience: time.Second, Slept: true}
	r.Advance(first.Sleep)
	if a := r.openAs(again, engines); a.Reason != reason.OK {
		r.Fatalf("open after the sleep: %+v, want ok", a)
	}
	if a := r.refused("5", 200, 0, tenantLimit); a.Sleep <= 2*time.Second {
		r.Errorf("a newcomer is to sleep %v: it overtakes who came before", a.Sleep)
	}
	again.ID = "3"
	r.Advance(2 * time.Second)
	if a := r.openAs(again, engines); a.Reason != reason.OK {
		r.Fatalf("open after the second sleep: %+v, want ok", a)
	}
}

// testSettle: what is used counts, once, however the request ends.
func testSettle(r *rig) {
	k := func(id string) lane.Key {
		return lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: "lane of " + id}
	}
	run := func(id, attempt string) { r.claimIn(k(id), id, attempt, registry.Run, reason.OK) }
	day := quota.Limit{Scope: quota.Tenant, Bucket: "a", Amount: 100_000, Per: quota.Day, Window: true}
	taken := 0 // of day, which does not leak
	for id, c := range map[string]struct {
		end  func(id string)
		used int
	}{
		"less": {func(id string) {
			run(id, "a")
			r.spent(id, "a", quota.Usage{Prompt: 60, Output: 40, Known: true})
			r.spent(id, "a", quota.Usage{Prompt: 900, Known: true}) // repeated
			r.cancel(id, false, registry.Finished)
		}, 100},
		"more": {func(id string) {
			run(id, "a")
			r.first(id, "a", true)
			r.spent(id, "a", quota.Usage{Prompt: 60, Output: 4000, Known: true})
		}, 4060},
		"not said":    {func(id string) { run(id, "a"); r.spent(id, "a", quota.Usage{Output: 3}) }, 1000},
		"dropped":     {func(id string) { r.spent(id, "", quota.Usage{Known: true}) }, 0},
		"client left": {func(id string) { r.cancel(id, true, registry.Queued) }, 0},
		"second start": {func(id string) {
			run(id, "a")
			r.release(id, "a", true)
			run(id, "b")
			r.spent(id, "b", quota.Usage{Prompt: 7, Known: true})
		}, 7},
		"client left a stream": {func(id string) {
			run(id, "a")
			r.first(id, "a", true)
			r.cancel(id, false, registry.Streaming)
			r.spent(id, "a", quota.Usage{Prompt: 60, Output: 5, Known: true})
		}, 65},
		"owner died":           {func(id string) { run(id, "a"); r.Advance(registry.Ownership); r.cancel(id, false, registry.Queued) }, 0},
		"owner died, it stood": {func(id string) { run(id, "a"); r.cancel(id, false, registry.Running); r.release(id, "a", true) }, 0},
		"owner of a stream died": {func(id string) {
			run(id, "a")
			r.first(id, "a", true)
			r.Advance(registry.Ownership)
			r.claimIn(k(id), id, "b", registry.Ack, reason.UpstreamLost)
		}, 1000},
	} {
		r.let(id, 1000, day)
		r.left(day, int64(100_000-taken-1000))
		c.end(id)
		taken += c.used
		r.left(day, int64(100_000-taken))
	}
	// 60 + 4,000 of one were 3,060 more than reserved; probes are reserved and given back.
	store := r.Records.(interface{ Quota() quota.Totals })
	if got := store.Quota(); got.Settled != int64(taken) || got.Reserved-got.Refunded != int64(taken)-3060 {
		r.Errorf("totals %+v, want %d settled", got, taken)
	}
	r.let("forgotten", 1000, day)
	r.Advance(registry.Keep + time.Minute)
	r.spent("forgotten", "", quota.Usage{Known: true})
	r.left(day, int64(100_000-taken-1000))
}

func testDebt(r *rig) {
	r.let("1", 100, tenantLimit)
	r.claimIn(lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: "lane of 1"}, "1", "a", registry.Run, reason.OK)
	r.spent("1", "a", quota.Usage{Output: 5700, Known: true})
	if a := r.refused("2", 1, 0, tenantLimit); a.Quota.Wait < 6*time.Second || a.Quota.Wait > 7100*time.Millisecond {
		r.Errorf("wait of %v under a debt of 700, want 7 s", a.Quota.Wait)
	}
	r.Advance(8 * time.Second)
	r.let("3", 1, tenantLimit)
	r.Advance(quota.Idle + time.Minute)
	r.left(tenantLimit, 5000)
}

func testWindow(r *rig) {
	r.Advance(time.Hour - time.Duration(r.Now().UnixMilli()%time.Hour.Milliseconds())*time.Millisecond + 10*time.Minute)
	l := quota.Limit{Scope: quota.Tenant, Bucket: "a", Amount: 1000, Per: time.Hour, Window: true}
	r.let("1", 1000, l)
	if a := r.refused("2", 1, 0, l); a.Quota.Wait < 49*time.Minute || a.Quota.Wait > 50*time.Minute || a.RetryAfter != time.Minute {
		r.Errorf("full window: %+v, want a wait of 50 minutes", a)
	}
	r.Advance(50 * time.Minute)
	r.let("3", 1000, l) // twice the limit across the boundary
	r.refused("4", 1000, 0, l)
	budget := l
	budget.Per = quota.Day
	r.let("5", 1000, budget)
	if a := r.ask("6", 1, budget); a.Reason != reason.BudgetSpent || a.Sleep != 0 {
		r.Errorf("spent budget: %+v, want insufficient_quota", a)
	}
}

func testSlice(r *rig) {
	pool := quota.Limit{Scope: quota.Tier, Bucket: "all", Amount: 6000, Per: time.Minute}
	owner := pool
	owner.Own, owner.Slice = 600, "vip" // holds 500
	r.let("1", 5000, pool)
	r.refused("2", 500, 0, pool)
	r.let("3", 500, owner)
	r.refused("4", 500, 0, owner)
	r.Advance(30 * time.Second) // 3,000 leaked, 500 are the slice's
	r.let("5", 300, owner)
	r.let("6", 2000, owner) // borrowed
	r.refused("7", 2000, 0, pool)
}

// testParallel: however many come at once, a limit is passed by one request at most.
func testParallel(r *rig) {
	limits := []quota.Limit{{Scope: quota.Tenant, Bucket: "a", Amount: 12_000, Per: time.Minute}} // holds 10,000
	var wait sync.WaitGroup
	var in atomic.Int64
	for i := range 200 {
		wait.Go(func() {
			k := lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: strconv.Itoa(i)}
			a, err := r.Records.Open(r.ctx, registry.Request{ID: k.Tenant, Lane: k, Reply: reply, Deadline: r.Now().Add(time.Minute), Tokens: 4000, Limit: time.Hour, Limits: limits}, engines)
			if err != nil {
				r.Error(err)
			}
			if a.Reason == reason.OK {
				in.Add(4000)
			}
		})
	}
	wait.Wait()
	if got := in.Load(); got < 8000 || got > 10_000+4000 {
		r.Errorf("%d tokens of a limit of 10,000 went in at once, want 8,000 to 14,000", got)
	}
}
