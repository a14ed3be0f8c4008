package scheduler

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/reason"
	"penstock/scheduler/fair"
)

// TestSetTiers: what runs keeps its tier by name, what is gone counts in the last, and
// when all has ended nothing is left anywhere.
func TestSetTiers(t *testing.T) {
	now := time.Unix(1000, 0)
	cfg := watermarks()
	cfg.Tiers = []Tier{{Name: "vip", Ceiling: 1}, {Name: "gone", Ceiling: 1}, {Name: "batch", Ceiling: 0.5}}
	s, err := New(cfg, now)
	if err != nil {
		t.Fatal(err)
	}
	s.Observe(now, Sample{At: now, KVTokens: 100_000, Ranks: 1})
	var slots []Slot
	for i, tier := range []int{0, 1, 1, 2} {
		slots = append(slots, s.Reserve(now, &Request{Hash: uint64(i + 1), PromptTokens: 100, ExpectedOut: 10, Sequences: 1, Tier: tier, Tenant: 7}))
	}
	s.Decide(now, &Request{Hash: 99, PromptTokens: 100, Sequences: 1, Tier: 1, Tenant: 8})
	vip := s.tiers[0].fair
	s.SetTiers([]Tier{{Name: "first", Ceiling: 1}, {Name: "batch", Ceiling: 0.01}, {Name: "vip", Ceiling: 1}})
	for i, want := range []int{0, 1, 3} {
		if got := s.tiers[i].inflight; got != want {
			t.Errorf("tier %s: %d in flight, want %d", s.tiers[i].Name, got, want)
		}
	}
	if s.tiers[2].fair != vip || s.tiers[1].Ceiling != 0.01 {
		t.Error("the counters or the new ceiling are not where their name is")
	}
	if why := s.allows(s.since(now), &Request{Hash: 100, PromptTokens: 5000, Sequences: 1, Tier: 1, Tenant: 8}); why != reason.TierCeiling {
		t.Errorf("beyond the new ceiling: %v", why)
	}
	for _, slot := range slots {
		s.Progress(now, slot, 100, 5)
		s.Release(now, slot)
	}
	for i := range s.tiers {
		if c := &s.tiers[i]; c.inflight != 0 || c.tokens != 0 || c.old != 0 || c.fair.Shared(12345) {
			t.Errorf("tier %s: %d in flight, %d tokens, %d old; want nothing", c.Name, c.inflight, c.tokens, c.old)
		}
	}
}

// TestSetTiersAtAnyTime keeps the tiers' sums those of what is in flight.
func TestSetTiersAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		s, err := New(watermarks(), now)
		if err != nil {
			t.Fatal(err)
		}
		s.Observe(now, Sample{At: now, KVTokens: 100_000, Ranks: 1})
		var slots []Slot
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(10 * time.Millisecond)
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				names := rapid.Permutation([]string{"a", "b", "c", "d"}).Draw(t, "order")[:rapid.IntRange(0, 4).Draw(t, "n")]
				tiers := make([]Tier, len(names))
				for i := range names {
					tiers[i] = Tier{Name: names[i], Ceiling: 1, Age: time.Second}
				}
				s.SetTiers(tiers)
			case 1:
				r := Request{Hash: rapid.Uint64Range(1, 50).Draw(t, "hash"), PromptTokens: 10, ExpectedOut: 5, Sequences: 1, Tier: rapid.IntRange(0, 4).Draw(t, "tier"), Tenant: rapid.Uint64Range(1, 3).Draw(t, "tenant")}
				if s.Decide(now, &r); rapid.Bool().Draw(t, "start") {
					slots = append(slots, s.Reserve(now, &r))
				}
			case 2:
				if len(slots) > 0 {
					s.Progress(now, slots[0], 10, rapid.IntRange(0, 9).Draw(t, "out"))
				}
			case 3:
				if len(slots) > 0 {
					s.Release(now, slots[0])
					slots = slots[1:]
				}
			}
			inflight, tokens := 0, 0
			for i := range s.tiers {
				inflight += s.tiers[i].inflight
				tokens += s.tiers[i].tokens
			}
			want := 0
			perTier := make([]int, len(s.tiers))
			for i := range s.slots {
				if e := &s.slots[i]; e.used && !e.released {
					want += e.bill.tokens
					perTier[e.bill.tier]++
				}
			}
			for i := range s.tiers {
				if perTier[i] != s.tiers[i].inflight {
					t.Fatalf("tier %d: %d in flight, its slots are %d", i, s.tiers[i].inflight, perTier[i])
				}
			}
			if inflight != len(slots) || tokens != want {
				t.Fatalf("%d in flight of %d, %d tokens of %d", inflight, len(slots), tokens, want)
			}
			for _, h := range s.heads.list[:s.heads.n] {
				if h.tier >= len(s.tiers) || h.who == (fair.Tenant{}) {
					t.Fatalf("a head of tier %d of %d", h.tier, len(s.tiers))
				}
			}
		}
	})
}
