package registrytest

import (
	"strconv"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

// visit opens one request of 100 tokens at 100 tokens per second.
func (r *rig) visit(k lane.Key, id string, limit time.Duration) registry.Admission {
	r.Helper()
	return r.openAs(registry.Request{ID: id, Lane: k, Tokens: 100, Bytes: 10, Limit: limit, Fingerprint: 7}, registry.Drain{Engines: 1, Rate: 100})
}

func testBounds(r *rig) {
	for i := range LaneRequests {
		r.open(strconv.Itoa(i))
	}
	refused := func(what string, q registry.Request) {
		r.Helper()
		a := r.openAs(q, engines)
		if a.Reason != reason.LaneFull || a.RetryAfter < time.Second || a.RetryAfter > time.Minute {
			r.Errorf("open past the bound in %s: %+v, want lane_full and when to come back", what, a)
		}
	}
	refused("requests", registry.Request{ID: "more", Lane: chat, Tokens: 100})
	other := chat
	other.Tenant = "b"
	refused("bytes of a lane", registry.Request{ID: "more", Lane: other, Tokens: 100, Bytes: LaneBytes + 1})
	third := chat
	third.Tenant = "c"
	for _, k := range []lane.Key{other, third} {
		if a := r.openAs(registry.Request{ID: "big " + k.Tenant, Lane: k, Tokens: 100, Bytes: TotalBytes / 2 * 9 / 10}, engines); a.Reason != reason.OK {
			r.Fatalf("open within the bounds: %+v", a)
		}
	}
	fourth := chat
	fourth.Tenant = "d"
	refused("bytes of all", registry.Request{ID: "more", Lane: fourth, Tokens: 100, Bytes: TotalBytes / 5})
	r.waiting(LaneRequests + 2)
	r.cancel("more", false, registry.Unknown)
	r.finish("0", "", true)
	r.open("room again")
	if a := r.openAs(registry.Request{ID: "none", Lane: chat, Tokens: 100}, registry.Drain{}); a.Reason != reason.NoEngine || a.RetryAfter < time.Second {
		r.Errorf("open without an engine: %+v, want no_engine and when to come back", a)
	}
}

func testDoor(r *rig) {
	for i := range 5 {
		id := strconv.Itoa(i)
		a := r.visit(chat, id, time.Minute)
		if want := time.Duration(i) * time.Second; a.Reason != reason.OK || a.Ahead != i || (a.Wait-want).Abs() > time.Millisecond {
			r.Fatalf("open with %d before it: %+v, want a wait of %v", i, a, want)
		}
	}
	held := r.Held()
	a := r.visit(chat, "5", 2*time.Second)
	// 5 s wait, 2 s are allowed: 3 s too long, and its place is one more second at 0.7 of the rate.
	if a.Reason != reason.Overloaded || a.RetryAfter < 4*time.Second || a.RetryAfter > 7*time.Second || a.RetryAfter%time.Second != 0 {
		r.Fatalf("open past the limit: %+v, want a refusal for 4 to 7 whole seconds", a)
	}
	if got := r.Held(); got != held {
		r.Errorf("%d records and lanes held after a refusal, %d before", got, held)
	}
	r.waiting(5)
	for i := range 3 {
		r.run(strconv.Itoa(i), "a")
	}
	r.release("2", "a", true)
	if a := r.visit(chat, "6", 2500*time.Millisecond); a.Reason == reason.OK {
		r.Errorf("open behind 3 s: %+v, a released request counts again", a)
	}
	r.cancel("3", true, registry.Queued)
	r.cancel("4", true, registry.Queued)
	if a := r.visit(chat, "7", 2500*time.Millisecond); a.Reason != reason.OK {
		r.Errorf("open behind 1 s: %+v, want ok", a)
	}
}

func testFairDoor(r *rig) {
	high, light := chat, chat
	high.Tier, light.Tenant = "high", "b"
	for i := range 10 {
		r.visit(chat, strconv.Itoa(i), time.Minute)
	}
	if a := r.visit(high, "h", time.Second); a.Reason != reason.OK || a.Wait != 0 {
		r.Errorf("a higher tier behind a lower one's backlog: %+v, want no wait", a)
	}
	r.run("h", "a")
	if a := r.visit(light, "l", 2*time.Second); a.Reason != reason.OK || (a.Wait-time.Second).Abs() > time.Millisecond {
		r.Errorf("the first of a light lane behind a heavy one: %+v, want one turn of wait, 1 s", a)
	}
	if a := r.visit(chat, "x", 2*time.Second); a.Reason != reason.Overloaded {
		r.Errorf("the next of the heavy lane: %+v, want overloaded", a)
	}
}

func testPlace(r *rig) {
	for i := range 4 {
		r.visit(chat, strconv.Itoa(i), time.Minute)
	}
	told := map[time.Duration]bool{}
	var last registry.Admission
	for i := range 200 {
		last = r.visit(chat, "r"+strconv.Itoa(i), time.Second)
		if last.Reason != reason.Overloaded || last.RetryAfter < time.Second || last.RetryAfter > time.Minute || last.RetryAfter%time.Second != 0 {
			r.Fatalf("refusal %d: %+v, want whole seconds from 1 to 60", i, last)
		}
		if i == 0 && !last.Kept {
			r.Errorf("refusal 0: %+v, want a place kept", last)
		}
		told[last.RetryAfter] = true
	}
	if len(told) < 20 {
		r.Errorf("200 refused clients were told %d different times, want each its own place", len(told))
	}
	if last.Kept || last.RetryAfter != time.Minute {
		r.Errorf("refusal beyond 60 s of work: %+v, want 60 s and no place", last)
	}
}

// testFairPlace: a lane that was refused ever so often leaves others their turn.
func testFairPlace(r *rig) {
	light := chat
	light.Tenant = "b"
	for i := range 4 {
		r.visit(chat, strconv.Itoa(i), time.Minute)
	}
	for i := range 200 {
		r.visit(chat, "r"+strconv.Itoa(i), time.Second)
	}
	// One turn of another lane is 1 s, 0.5 s are allowed: 0.5 s too long, and 200 tokens
	// of two lanes, at 0.7 of the rate, are 2.9 s more; for the next one, twice.
	for i, most := range []time.Duration{5 * time.Second, 8 * time.Second} {
		a := r.visit(light, "l"+strconv.Itoa(i), time.Second/2)
		if a.Reason != reason.Overloaded || !a.Kept || a.RetryAfter < most-2*time.Second || a.RetryAfter > most {
			r.Errorf("refusal %d of a light lane behind 200 of a heavy one: %+v, want at most %v and a place", i, a, most)
		}
	}
	for i := range 3 {
		if a := r.visit(chat, "x"+strconv.Itoa(i), time.Second); a.RetryAfter != time.Minute || i == 2 && a.Kept {
			r.Errorf("the heavy lane's next: %+v, want 60 s, and soon no place", a)
		}
	}
}

func testRate(r *rig) {
	r.visit(chat, "0", time.Minute)
	r.visit(chat, "1", time.Minute)
	silent := func(id string) registry.Admission {
		r.Helper()
		return r.openAs(registry.Request{ID: id, Lane: chat, Tokens: 100, Bytes: 10, Limit: time.Second}, engines)
	}
	r.Advance(20 * time.Second)
	if a := silent("2"); a.Reason != reason.Overloaded {
		r.Errorf("open 20 s after the last report: %+v, want it judged by that", a)
	}
	r.Advance(11 * time.Second)
	if a := silent("3"); a.Reason != reason.OK || a.Wait != 0 {
		r.Errorf("open 31 s after the last report: %+v, want ok", a)
	}
	r.run("0", "a") // 100 tokens, while others wait
	r.Advance(time.Second)
	if a := silent("4"); a.Reason != reason.Overloaded {
		r.Errorf("open with only starts to judge by: %+v, want overloaded", a)
	}
}

// testUnderload: what comes seldom says little of how much could go.
func testUnderload(r *rig) {
	silent := func(id string) registry.Admission {
		r.Helper()
		return r.openAs(registry.Request{ID: id, Lane: chat, Tokens: 100, Bytes: 10, Limit: time.Second}, engines)
	}
	for i := range 8 {
		first, second := "first "+strconv.Itoa(i), "second "+strconv.Itoa(i)
		silent(first)
		silent(second)
		r.Advance(20 * time.Millisecond)
		r.run(first, "a")
		r.run(second, "a")
		r.finish(first, "a", true)
		r.finish(second, "a", true)
		r.Advance(time.Second)
	}
	// 100 tokens in each 20 ms with work: 5,000 per second.
	for i := range LaneRequests - 1 {
		if a := silent("burst " + strconv.Itoa(i)); a.Reason != reason.OK {
			r.Fatalf("open %d of a burst on an idle fleet: %+v, want ok", i, a)
		}
	}
	r.Advance(8 * time.Second)
	if a := silent("late"); a.Reason != reason.Overloaded {
		r.Errorf("open when nothing of the burst has started for 8 s: %+v, want overloaded", a)
	}
}

func testRest(r *rig) {
	const n = 500
	for i := range n {
		id := strconv.Itoa(i)
		k := chat
		k.Tenant = id
		if a := r.openAs(registry.Request{ID: id, Lane: k, Tokens: 100, Bytes: 1}, engines); a.Reason != reason.OK {
			r.Fatalf("open %s: %+v", id, a)
		}
		switch i % 5 {
		case 0:
			r.cancel(id, true, registry.Queued)
		case 1:
			r.finish(id, "", true)
		case 2:
			r.claimIn(k, id, "a", registry.Run, reason.OK)
			r.first(id, "a", true)
			r.finish(id, "a", true)
		case 3:
			r.claimIn(k, id, "a", registry.Run, reason.OK)
			r.cancel(id, false, registry.Running) // and its owner dies
		}
		if i%10 == 9 {
			r.finish(id, "", true)
			r.finish(strconv.Itoa(i-5), "", true)
		}
	}
	r.waiting(0)
	r.Advance(2 * time.Minute)
	if got := r.Held(); got != 0 {
		r.Errorf("%d records and lanes at rest, want 0", got)
	}
	r.open("forgotten")
	r.Advance(registry.Keep + time.Minute)
	r.waiting(0)
	if got := r.Held(); got != 0 {
		r.Errorf("%d records and lanes after a request was forgotten for %v, want 0", got, registry.Keep)
	}
}
