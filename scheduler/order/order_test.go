package order

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestTiersNameTheBadField(t *testing.T) {
	for want, spoil := range map[string]func(*Tier){
		"name":              func(t *Tier) { t.Name = "" },
		`two tiers`:         func(t *Tier) { t.Name = "first" },
		"floor of tier":     func(t *Tier) { t.Floor = -1 },
		"ceiling of tier":   func(t *Tier) { t.Ceiling = 0 },
		"at least its floo": func(t *Tier) { t.Floor, t.Ceiling = 0.5, 0.4 },
		"age of tier":       func(t *Tier) { t.Age = -1 },
		"slo-ttft of tier":  func(t *Tier) { t.SLOTTFT = time.Hour },
		"slo-tpot of tier":  func(t *Tier) { t.SLOTPOT = -1 },
		"add up to 1.5":     func(t *Tier) { t.Floor = 0.9 },
	} {
		bad := Tier{Name: "a", Ceiling: 1}
		spoil(&bad)
		if err := ValidateTiers([]Tier{{Name: "first", Ceiling: 1, Floor: 0.6}, bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := ValidateTiers(make([]Tier, MostTiers+1)); err == nil || !strings.Contains(err.Error(), "at most 16") {
		t.Errorf("error %v, want the bound of tiers", err)
	}
}

// TestRankIsThePlaceInTheOrder: what a head is told is how many of those remembered would
// start before it, whoever waits. Between tenants equal counters decide nothing; of one
// tenant's heads the sooner one goes first.
func TestRankIsThePlaceInTheOrder(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q := New([]Tier{{Name: "a", Ceiling: 1, Floor: 0.2}, {Name: "b", Ceiling: 1, Floor: 0.3, Age: time.Second}, {Name: "c", Ceiling: 1, Age: 2 * time.Second}}, time.Second, time.Second)
		q.SetKVTokens(20_000)
		now := 10 * time.Second
		for i := range uint64(300) {
			const first = 300 * time.Millisecond
			now += time.Duration(rng.IntN(60)) * time.Millisecond
			h := Head{
				Hash: 1 + rng.Uint64N(100), Tenant: rng.Uint64N(6), Tier: rng.IntN(3), Prompt: rng.IntN(500), Output: rng.IntN(300),
				Opened: now - time.Duration(rng.IntN(2500))*time.Millisecond, Deadline: Never, SLO: time.Duration(1+rng.IntN(3)) * time.Second,
			}
			if i%3 == 0 {
				q.Enter(now, &h)
				continue
			}
			w, rank, ahead := q.Note(now, first, &h)
			own, want, inTime := q.turn(now, first, w), 1, false
			for k := range q.heads.list[:q.heads.n] {
				o, e := q.turn(now, first, &q.heads.list[k]), &q.heads.list[k]
				before := o.Before(&own)
				if o.class == own.class && o.class > 0 && o.late == own.late {
					before = o.tokens < own.tokens
					if e.who == w.who {
						before = e.sooner(&w.times)
					}
				}
				if before && e != w {
					want++
					inTime = inTime || now+first <= e.slo
				}
			}
			if rank != want || ahead != inTime {
				t.Fatalf("seed %d, head %d: rank %d and %t that one in time is before it, want %d and %t", seed, i, rank, ahead, want, inTime)
			}
		}
	}
}

func BenchmarkNote(b *testing.B) {
	q := New(nil, 2*time.Second, time.Second)
	q.SetKVTokens(1 << 20)
	h := func(i uint64) *Head {
		return &Head{Hash: i + 1, Tenant: i % 9, Prompt: 1000, Output: 200, Opened: time.Duration(i) * time.Millisecond, Deadline: 30 * time.Second, SLO: 2 * time.Second}
	}
	for i := range uint64(200) {
		q.Note(time.Second, 0, h(i))
	}
	r := h(150)
	b.ReportAllocs()
	for b.Loop() {
		q.Note(time.Second, 0, r)
	}
}
