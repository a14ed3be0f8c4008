package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/scheduler/fair"
)

// shop is an engine of k KV tokens where every lane always has a head in the room and a
// step takes 20 ms: a prompt's first token comes with the step after its start.
type shop struct {
	s       *State
	now     time.Time
	k       int
	lanes   []lane
	jobs    []shopJob
	hash    uint64
	started []int   // by lane
	service []int64 // by lane, as fair.Cost weighs it
}

// lane is who sends and what: prompt and output up to these, drawn.
type lane struct {
	tenant         uint64
	tier           int
	prompt, output int
}

type shopJob struct {
	lane, prompt, out, end int
	slot                   Slot
}

func newShop(t *testing.T, cfg Config, k int, lanes ...lane) *shop {
	t.Helper()
	now := time.Unix(1000, 0)
	s, err := New(cfg, now)
	if err != nil {
		t.Fatal(err)
	}
	return &shop{s: s, now: now, k: k, lanes: lanes, started: make([]int, len(lanes)), service: make([]int64, len(lanes))}
}

func (w *shop) run(rng *rand.Rand, steps int, look func()) {
	heads, ends := make([]Request, len(w.lanes)), make([]int, len(w.lanes))
	next := func(i int) {
		l := &w.lanes[i]
		w.hash++
		heads[i] = Request{
			Hash: mix(1, w.hash), Tenant: l.tenant, Tier: l.tier, PromptTokens: 1 + rng.IntN(l.prompt), ExpectedOut: l.output / 2, MaxTokens: l.output,
			Sequences: 1, Stream: true, Opened: w.now, SLOTTFT: time.Hour,
		}
		ends[i] = 1 + rng.IntN(l.output)
	}
	for i := range heads {
		next(i)
	}
	for range steps {
		w.now = w.now.Add(20 * time.Millisecond)
		used := 0
		for i := 0; i < len(w.jobs); i++ {
			j := &w.jobs[i]
			if j.out++; j.out == 1 {
				w.service[j.lane] += fair.Cost(j.prompt, 0)
			}
			w.service[j.lane] += fair.Cost(0, 1)
			w.s.Progress(w.now, j.slot, j.prompt, j.out)
			if used += j.prompt + j.out; j.out >= j.end {
				w.s.Finish(w.now, j.slot)
				w.jobs = slices.Delete(w.jobs, i, i+1)
				i--
			}
		}
		w.s.Observe(w.now, Sample{At: w.now, Asked: w.now, KV: min(float64(used)/float64(w.k), 1), Running: len(w.jobs), KVTokens: w.k, Tokens: float64(w.now.UnixNano())})
		for i := range heads { // each is seen, as if it came back
			if v := w.s.Decide(w.now, &heads[i]); v.Action == Drop {
				next(i)
			}
		}
		for {
			i, v := w.s.Pick(w.now, heads)
			if i < 0 || v.Action != Start {
				break
			}
			w.jobs = append(w.jobs, shopJob{i, heads[i].PromptTokens, 0, ends[i], w.s.Reserve(w.now, &heads[i])})
			w.started[i]++
			next(i)
			if look != nil {
				look()
			}
		}
	}
}

// TestServiceGap: what one tenant gets more than another while both wait stays within
// VTC's bound, whatever their lengths; one of them has as many heads out as a broker
// gives.
func TestServiceGap(t *testing.T) {
	const k = 20_000
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		of := func(all ...int) int { return all[rng.IntN(len(all))] }
		var lanes []lane
		longest := 0
		for i := range of(2, 3, 5) {
			l := lane{tenant: uint64(i + 1), prompt: of(10, 300, 2000), output: of(2, 50, 400)}
			longest = max(longest, l.prompt)
			lanes = append(lanes, l)
			for n := of(0, 3, 6); i == 0 && n > 0; n-- {
				lanes = append(lanes, l)
			}
		}
		cfg := watermarks()
		cfg.Law = Forecast
		w := newShop(t, cfg, k, lanes...)
		var most, least [6][6]int64
		w.run(rng, 700, func() {
			var got [6]int64
			for i, l := range w.lanes {
				got[l.tenant] += w.service[i]
			}
			for a := range got {
				for b := range got {
					most[a][b], least[a][b] = max(most[a][b], got[a]-got[b]), min(least[a][b], got[a]-got[b])
				}
			}
		})
		tenants, bound := lanes[len(lanes)-1].tenant, 2*max(fair.In*int64(longest), fair.Out*k)
		for a := uint64(1); a <= tenants; a++ {
			for b := uint64(1); b <= tenants; b++ {
				if gap := most[a][b] - least[a][b]; gap > bound {
					t.Errorf("seed %d, %+v: tenant %d got %d tokens more than tenant %d, the bound is %d", seed, lanes, a, gap, b, bound)
				}
			}
		}
	}
}

// TestCreditIsBounded: a tenant who comes back goes before one who was there all along
// for no more than the credit.
func TestCreditIsBounded(t *testing.T) {
	const k = 20_000
	w := newShop(t, watermarks(), k, lane{tenant: 1, prompt: 500, output: 100})
	rng := rand.New(rand.NewPCG(1, 1))
	w.run(rng, 2000, nil)
	w.lanes = append(w.lanes, lane{tenant: 2, prompt: 500, output: 100})
	w.started, w.service = []int{0, 0}, []int64{0, 0}
	var most int64
	w.run(rng, 3000, func() { most = max(most, w.service[1]-w.service[0]) })
	if bound := int64(0.5*k + 2*fair.Out*k); most > bound || most == 0 {
		t.Errorf("the one who came back got %d tokens more, want some and at most %d", most, bound)
	}
	if a, b := w.service[0], w.service[1]; b > 2*a {
		t.Errorf("served %d and %d in a minute, want about the same", a, b)
	}
}

// TestNobodyStarves: under tiers that always wait and would fill the engine, the last
// one has a start in every age and length of an answer.
func TestNobodyStarves(t *testing.T) {
	cfg := watermarks()
	cfg.Tiers = []Tier{{Name: "vip", Ceiling: 1}, {Name: "batch", Ceiling: 1, Age: 5 * time.Second}}
	w := newShop(t, cfg, 20_000, lane{tenant: 1, prompt: 1000, output: 100}, lane{tenant: 2, prompt: 1000, output: 100}, lane{tenant: 3, tier: 1, prompt: 1000, output: 100})
	w.run(rand.New(rand.NewPCG(1, 1)), 3000, nil) // a minute
	if got := w.started[2]; got < 5 || got > 12 {
		t.Errorf("%d starts of the old tier in a minute, want about one in 5 s and an answer's 2 s", got)
	}
}

// TestSharesAreKept: no start takes a tier past its ceiling, and one that always waits
// has its floor.
func TestSharesAreKept(t *testing.T) {
	const k = 40_000
	for seed, c := range []struct{ a, b, floor float64 }{{0.2, 1, 0}, {0.5, 0.3, 0}, {1, 1, 0.3}, {1, 0.3, 0.3}, {0.5, 1, 0.3}} {
		cfg := watermarks()
		cfg.Law = Forecast
		cfg.Tiers = []Tier{{Name: "a", Ceiling: c.a}, {Name: "b", Ceiling: c.b, Floor: c.floor}, {Name: "c", Ceiling: 0.1}}
		w := newShop(t, cfg, k, lane{tier: 0, prompt: 500, output: 100}, lane{tier: 1, prompt: 800, output: 100}, lane{tier: 2, prompt: 300, output: 50})
		low, n := 0, 0
		w.run(rand.New(rand.NewPCG(uint64(seed), 1)), 1000, func() {
			for i, x := range cfg.Tiers {
				// Answers turn out longer than expected, by half at the most in the mean.
				if inflight, tokens := w.s.queue.Held(i); inflight > 1 && float64(tokens) > 1.25*x.Ceiling*k {
					t.Fatalf("%+v: tier %s holds %d tokens, its ceiling is %g of %d", c, x.Name, tokens, x.Ceiling, k)
				}
			}
			if _, tokens := w.s.queue.Held(1); float64(tokens) < (c.floor-0.05)*k {
				low++
			}
			n++
		})
		if low > n/4 {
			t.Errorf("%+v: tier b was below its floor at %d of %d starts", c, low, n)
		}
	}
}
