package redis

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// limitOf draws limits that share buckets, with rates that change between requests.
func limitOf(t *rapid.T, i int) quota.Limit {
	l := quota.Limit{
		Scope: quota.Tenant, Bucket: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "bucket") + strconv.Itoa(i),
		Unit:   rapid.SampledFrom([]quota.Unit{quota.Tokens, quota.Requests}).Draw(t, "unit"),
		Amount: rapid.Int64Range(10, 20_000).Draw(t, "amount"),
		Per:    rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 7 * time.Minute}).Draw(t, "per"),
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		l.Window = true
		l.Per *= rapid.SampledFrom([]time.Duration{1, 24 * 60}).Draw(t, "times")
	case 1:
		l.Own, l.Slice = rapid.Int64Range(l.Amount/2, l.Amount).Draw(t, "own"), "s"+strconv.Itoa(i)
	}
	return l
}

// rounded forgives a millisecond.
var rounded = cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= time.Millisecond })

// TestLimitsAreThoseOfABook: whatever requests, limits and usages come, the scripts
// answer as a quota.Book does.
func TestLimitsAreThoseOfABook(t *testing.T) {
	s := fake(t)
	r, n := dial(t, s, testConfig(s)), 0
	ctx := context.Background()
	rapid.Check(t, func(t *rapid.T) {
		s.advance(quota.Idle)
		s.raw.FlushDB(ctx)
		book := quota.New()
		charges := map[string]quota.Charge{}
		var open, slept []string
		asked := map[string]registry.Request{}
		ask := func(q registry.Request) {
			want := book.Look(s.now(), q.Limits, q.Tokens, q.Slept)
			got, err := r.Open(ctx, q, registry.Drain{Engines: 1})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got.Quota, rounded); diff != "" {
				t.Fatalf("open %+v (-book +redis):\n%s", q, diff)
			}
			switch {
			case got.Sleep > 0:
				if !q.Slept {
					book.Promise(s.now(), q.Limits, q.Tokens)
				}
				slept = append(slept, q.ID)
				asked[q.ID] = q
			case got.Reason == reason.OK:
				charges[q.ID] = book.Take(s.now(), q.Limits, q.Tokens, q.Slept)
				open = append(open, q.ID)
			}
		}
		first := func(of *[]string) string {
			if len(*of) == 0 {
				t.Skip("none")
			}
			id := (*of)[0]
			*of = (*of)[1:]
			return id
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				if len(open) > 10 {
					t.Skip("the lane is full")
				}
				n++
				q := request(fmt.Sprint("q", n), chat)
				q.Tokens, q.Patience = rapid.IntRange(1, 4000).Draw(t, "tokens"), quota.MaxWait
				for i := range rapid.IntRange(0, 4).Draw(t, "limits") {
					q.Limits = append(q.Limits, limitOf(t, i))
				}
				ask(q)
			},
			"wake": func(t *rapid.T) {
				q := asked[first(&slept)]
				q.Slept = true
				ask(q)
			},
			"end": func(t *rapid.T) {
				id := first(&open)
				used := quota.Usage{Prompt: rapid.IntRange(0, 5000).Draw(t, "used"), Known: rapid.Bool().Draw(t, "known")}
				charge := charges[id]
				if rapid.Bool().Draw(t, "cancel") {
					used = quota.Usage{Known: true}
					if _, err := r.Cancel(ctx, id, true); err != nil {
						t.Fatal(err)
					}
				} else if _, err := r.Finish(ctx, id, "", nil, used); err != nil {
					t.Fatal(err)
				}
				book.Settle(s.now(), &charge, used.Tokens())
			},
			"pass": func(t *rapid.T) {
				s.advance(time.Duration(rapid.SampledFrom([]int{1, 13, 500, 7001, 8000, 61_000}).Draw(t, "ms")) * time.Millisecond)
			},
		})
	})
	if a := openOne(t, r, "none", chat); a.Reason != reason.OK || a.Quota != (quota.Verdict{}) {
		t.Errorf("open without limits: %+v", a)
	}
}
