package order

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/scheduler/fair"
)

// TestSetTiers: what runs keeps its tier by name, what is gone counts in the last, and
// when all has ended nothing is left anywhere.
func TestSetTiers(t *testing.T) {
	q := New([]Tier{{Name: "vip", Ceiling: 1}, {Name: "gone", Ceiling: 1}, {Name: "batch", Ceiling: 0.5}}, time.Second, time.Second)
	q.SetKVTokens(100_000)
	var bills []*Bill
	for i, tier := range []int{0, 1, 1, 2} {
		b := q.Enter(1, &Head{Hash: uint64(i + 1), Prompt: 100, Output: 10, Tier: tier, Tenant: 7})
		bills = append(bills, &b)
	}
	q.Note(1, 0, &Head{Hash: 99, Prompt: 100, Tier: 1, Tenant: 8})
	vip := q.tiers[0].fair
	q.SetTiers([]Tier{{Name: "first", Ceiling: 1}, {Name: "batch", Ceiling: 0.01}, {Name: "vip", Ceiling: 1}}, slices.Values(bills))
	for i, want := range []int{0, 1, 3} {
		if got, _ := q.Held(i); got != want {
			t.Errorf("tier %s: %d in flight, want %d", q.tiers[i].Name, got, want)
		}
	}
	if q.tiers[2].fair != vip || q.tiers[1].Ceiling != 0.01 {
		t.Error("the counters or the new ceiling are not where their name is")
	}
	if !q.Full(1, 5000) {
		t.Error("5,000 tokens fit a ceiling of 1,000")
	}
	for _, b := range bills {
		q.Grow(b, 100, 5, 10)
		q.Exit(b, 100, 5)
	}
	for i := range q.tiers {
		if c := &q.tiers[i]; c.inflight != 0 || c.tokens != 0 || c.old != 0 || c.fair.Shared(12345) {
			t.Errorf("tier %s: %d in flight, %d tokens, %d old; want nothing", c.Name, c.inflight, c.tokens, c.old)
		}
	}
}

// TestSetTiersAtAnyTime keeps the tiers' sums those of what is in flight.
func TestSetTiersAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(nil, time.Second, time.Second)
		q.SetKVTokens(100_000)
		var bills []*Bill
		for now := range time.Duration(rapid.IntRange(1, 40).Draw(t, "steps")) {
			now *= 10 * time.Millisecond
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				names := rapid.Permutation([]string{"a", "b", "c", "d"}).Draw(t, "order")[:rapid.IntRange(0, 4).Draw(t, "n")]
				tiers := make([]Tier, len(names))
				for i := range names {
					tiers[i] = Tier{Name: names[i], Ceiling: 1, Age: 100 * time.Millisecond}
				}
				q.SetTiers(tiers, slices.Values(bills))
			case 1:
				h := Head{
					Hash: rapid.Uint64Range(1, 50).Draw(t, "hash"), Prompt: 10, Output: 5, Deadline: Never,
					Tier: rapid.IntRange(-1, 4).Draw(t, "tier"), Tenant: rapid.Uint64Range(1, 3).Draw(t, "tenant"),
				}
				if q.Note(now, 0, &h); rapid.Bool().Draw(t, "start") {
					b := q.Enter(now, &h)
					bills = append(bills, &b)
				}
			case 2:
				if len(bills) > 0 {
					q.Grow(bills[0], 10, rapid.IntRange(0, 9).Draw(t, "out"), 5)
				}
			case 3:
				if len(bills) > 0 {
					q.Exit(bills[0], 10, 3)
					bills = bills[1:]
				}
			}
			inflight, tokens := make([]int, len(q.tiers)), make([]int, len(q.tiers))
			for _, b := range bills {
				inflight[b.tier]++
				tokens[b.tier] += b.tokens
			}
			for i := range q.tiers {
				if n, held := q.Held(i); n != inflight[i] || held != tokens[i] {
					t.Fatalf("tier %d has %d requests of %d tokens, its bills are %d of %d", i, n, held, inflight[i], tokens[i])
				}
			}
			for _, w := range q.heads.list[:q.heads.n] {
				if w.tier >= len(q.tiers) || w.who == (fair.Tenant{}) {
					t.Fatalf("a head of tier %d of %d", w.tier, len(q.tiers))
				}
			}
		}
	})
}
