// Package registrytest is the suite every implementation of registry.Records and
// registry.Directory passes: Run checks the rules one by one, Interleave looks for
// an order of events that breaks them.
package registrytest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// Bounds and funcs an implementation under test is configured with.
const (
	LaneRequests = 16
	LaneBytes    = 64 << 10
	TotalBytes   = 128 << 10
)

// Rank puts tier "high" before all others.
func Rank(tier string) int {
	if tier == "high" {
		return 0
	}
	return 1
}

// Pace lets lanes of tenant "paced" start 2 requests per second.
func Pace(k lane.Key) float64 {
	if k.Tenant == "paced" {
		return 2
	}
	return 0
}

// Terminal encodes what the store itself appends.
func Terminal(id, attempt string, why reason.Reason) []byte {
	return fmt.Appendf(nil, "end %s %s %s", id, attempt, why)
}

// Cancel is one call to the owner of a cancelled request.
type Cancel struct{ Owner, ID, Attempt string }

// Harness is a fresh store and what the tests see of it.
type Harness struct {
	Records   registry.Records
	Directory registry.Directory
	Backlog   func() []registry.Backlog
	Held      func() int                  // records and lanes that take up room
	Now       func() time.Time            // the store's clock
	Advance   func(d time.Duration)       // lets d pass for the store
	Events    func(reply string) []string // appended so far, in order
	Cancels   func() []Cancel             // told so far
	Live      func(reply string, ok bool) // says whether a gateway is there; all are at first
}

// With runs test with a fresh Harness, in whatever surroundings it needs.
type With func(t *testing.T, test func(t *testing.T, h Harness))

// Run checks every rule of the protocol.
func Run(t *testing.T, with With) {
	for _, c := range []struct {
		name string
		test func(*rig)
	}{
		{"a request runs and ends once", testLife},
		{"a repeated call changes nothing", testRepeats},
		{"a claim is refused in the order of the rules", testClaimOrder},
		{"a dead owner's request runs again", testDeadOwner},
		{"a dead stream does not", testDeadStream},
		{"a renewal keeps it, also late", testRenew},
		{"a lost record is written again", testLostRecord},
		{"a release gives it back", testRelease},
		{"started too often is the end", testTries},
		{"a cancel of a queued request ends it", testCancelQueued},
		{"a cancel of a running one tells its owner", testCancelRunning},
		{"a cancel finds its owner dead", testCancelDead},
		{"a finish is heard once", testFinish},
		{"an orphan is given one chance", testOrphan},
		{"a lane keeps its pace", testPace},
		{"bounds leave nothing behind", testBounds},
		{"the door refuses what cannot start in time", testDoor},
		{"tiers and lanes wait for their own", testFairDoor},
		{"a place is kept for who comes back", testPlace},
		{"a lane's refusals do not take others' places", testFairPlace},
		{"the drain rate is remembered", testRate},
		{"what comes seldom says little of the rate", testUnderload},
		{"every limit has room or none is taken", testLimits},
		{"no crowd passes a limit", testParallel},
		{"who sleeps for a limit is not overtaken", testLimitSleep},
		{"what is used is settled once", testSettle},
		{"more than was reserved is a debt", testDebt},
		{"windows and budgets", testWindow},
		{"a slice is its owner's", testSlice},
		{"engines are listed until long gone", testDirectory},
		{"nothing stays at rest", testRest},
	} {
		t.Run(c.name, func(t *testing.T) {
			with(t, func(t *testing.T, h Harness) { c.test(&rig{T: t, Harness: h, ctx: t.Context()}) })
		})
	}
}

// rig calls the store the way the tests read.
type rig struct {
	*testing.T
	Harness
	ctx    context.Context
	probes int // asked so far, see left
}

const reply = "gateway"

var (
	chat    = lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: "a"}
	engines = registry.Drain{Engines: 1}
)

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) openAs(q registry.Request, d registry.Drain) registry.Admission {
	r.Helper()
	if q.Reply == "" {
		q.Reply = reply
	}
	if q.Limit == 0 {
		q.Limit = time.Hour
	}
	if q.Deadline.IsZero() {
		q.Deadline = r.Now().Add(30 * time.Second)
	}
	a, err := r.Records.Open(r.ctx, q, d)
	r.ok(err)
	return a
}

// open opens a request of 100 tokens in lane chat.
func (r *rig) open(id string) {
	r.Helper()
	if a := r.openAs(registry.Request{ID: id, Lane: chat, Tokens: 100, Bytes: 10}, engines); a.Reason != reason.OK {
		r.Fatalf("open %s: %+v, want ok", id, a)
	}
}

// claim claims for owner "o" + the attempt and wants the action and reason.
func (r *rig) claim(id, attempt string, action registry.Action, why reason.Reason) registry.Claim {
	r.Helper()
	return r.claimIn(chat, id, attempt, action, why)
}

func (r *rig) claimIn(k lane.Key, id, attempt string, action registry.Action, why reason.Reason) registry.Claim {
	r.Helper()
	c, err := r.Records.Claim(r.ctx, registry.Start{
		ID: id, Attempt: attempt, Owner: "o" + attempt, Lane: k, Deadline: r.Now().Add(30 * time.Second), Reply: reply, Tokens: 100,
	})
	r.ok(err)
	if c.Action != action || c.Reason != why {
		r.Fatalf("claim %s by %s: %+v, want action %d, %v", id, attempt, c, action, why)
	}
	return c
}

func (r *rig) run(id, attempt string) {
	r.Helper()
	r.claim(id, attempt, registry.Run, reason.OK)
}

func (r *rig) first(id, attempt string, want bool) {
	r.Helper()
	got, err := r.Records.First(r.ctx, id, attempt, []byte("first "+id+" "+attempt))
	r.ok(err)
	if got != want {
		r.Fatalf("first of %s by %s: %v, want %v", id, attempt, got, want)
	}
}

func (r *rig) finish(id, attempt string, want bool) {
	r.Helper()
	got, err := r.Records.Finish(r.ctx, id, attempt, []byte("end "+id+" "+attempt+" "+reason.Finished.String()), quota.Usage{})
	r.ok(err)
	if got != want {
		r.Fatalf("finish of %s by %s: %v, want %v", id, attempt, got, want)
	}
}

// renew renews one attempt and wants it kept or lost.
func (r *rig) renew(id, attempt string, kept bool) {
	r.Helper()
	lost, err := r.Records.Renew(r.ctx, "o"+attempt, []registry.Ref{{ID: id, Attempt: attempt, Reply: reply}})
	r.ok(err)
	if got := len(lost) == 0; got != kept {
		r.Fatalf("renewal of %s by %s kept it: %v, want %v", id, attempt, got, kept)
	}
}

func (r *rig) release(id, attempt string, blameless bool) {
	r.Helper()
	r.ok(r.Records.Release(r.ctx, id, attempt, blameless))
}

func (r *rig) cancel(id string, onlyIfQueued bool, want registry.State) registry.Canceled {
	r.Helper()
	c, err := r.Records.Cancel(r.ctx, id, onlyIfQueued)
	r.ok(err)
	if c.State != want {
		r.Fatalf("cancel of %s found %+v, want state %d", id, c, want)
	}
	return c
}

func (r *rig) events(want ...string) {
	r.Helper()
	if got := r.Events(reply); strings.Join(got, "; ") != strings.Join(want, "; ") {
		r.Fatalf("events %q, want %q", got, want)
	}
}

// waiting wants that many requests in the backlog of all lanes, of 100 tokens each.
func (r *rig) waiting(want int) {
	r.Helper()
	requests, tokens := 0, 0
	for _, b := range r.Backlog() {
		requests += b.Requests
		tokens += b.Tokens
	}
	if requests != want || tokens != 100*want {
		r.Fatalf("%d requests and %d tokens wait, want %d and %d", requests, tokens, want, 100*want)
	}
}
