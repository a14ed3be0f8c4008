package redis

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/memory"
	"penstock/registry/registrytest"
)

// visit is a step of a day at the door: time passes, then a request comes, or starts
// and ends.
type visit struct {
	after time.Duration
	id    string
	start bool
	q     registry.Request
	rate  float64
}

// visits is twice what a server takes that is slower than it says, in three lanes of
// two tiers.
func visits(n int) []visit {
	rng := rand.New(rand.NewPCG(3, 4))
	list := make([]visit, n)
	for i := range list {
		v := visit{after: time.Duration(rng.IntN(120)) * time.Millisecond, start: i%3 == 2, id: name(rng.IntN(i + 1)), rate: 500 + 500*rng.Float64()}
		if !v.start {
			v.id = name(i)
			k := chat
			k.Tenant = name(rng.IntN(3))
			if rng.IntN(4) == 0 {
				k.Tier = "high"
			}
			v.q = registry.Request{
				ID: v.id, Lane: k, Reply: "g", Tokens: 50 + rng.IntN(200), Bytes: 10, Limit: time.Duration(1+rng.IntN(4)) * time.Second, Fingerprint: uint64(1 + rng.IntN(200)),
			}
		}
		list[i] = v
	}
	return list
}

// play is what the door of one store answers.
func play(t *testing.T, r registry.Records, list []visit, now func() time.Time, advance func(time.Duration)) []registry.Admission {
	var answers []registry.Admission
	opened := map[string]registry.Request{}
	var queue []string // by arrival
	for _, v := range list {
		advance(v.after)
		if !v.start {
			v.q.Deadline = now().Add(time.Minute)
			a, err := r.Open(t.Context(), v.q, registry.Drain{Engines: 1, Rate: v.rate})
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, a)
			if a.Reason == reason.OK {
				opened[v.id] = v.q
				queue = append(queue, v.id)
			}
			continue
		}
		if len(queue) == 0 {
			continue
		}
		q := opened[queue[0]]
		queue = queue[1:]
		if _, err := r.Claim(t.Context(), registry.Start{ID: q.ID, Attempt: "a", Owner: "o", Lane: q.Lane, Deadline: q.Deadline, Reply: "g", Tokens: q.Tokens}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Finish(t.Context(), q.ID, "a", nil, quota.Usage{}); err != nil {
			t.Fatal(err)
		}
	}
	return answers
}

// The arithmetic is that of registry/memory, number by number.
func TestDoorIsThatOfMemory(t *testing.T) {
	list := visits(600)
	var want []registry.Admission
	synctest.Test(t, func(t *testing.T) {
		cfg := memory.DefaultConfig()
		cfg.Terminal, cfg.Rank = registrytest.Terminal, registrytest.Rank
		r, err := memory.New(cfg, func(string, []byte) error { return nil }, func(string, string, string) {})
		if err != nil {
			t.Fatal(err)
		}
		want = play(t, r, list, time.Now, time.Sleep)
	})
	s := fake(t)
	cfg := testConfig(s)
	defaults := DefaultConfig()
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes = defaults.LaneRequests, defaults.LaneBytes, defaults.TotalBytes
	got := play(t, dial(t, s, cfg), list, s.now, s.advance)
	audit(t, s)
	refused := 0
	for i := range want {
		a, b := want[i], got[i]
		if a.Reason != b.Reason || a.Ahead != b.Ahead || math.Abs(float64(a.Wait-b.Wait)) > float64(time.Millisecond) ||
			a.RetryAfter != b.RetryAfter || a.Kept != b.Kept {
			t.Fatalf("visit %d of %d: %+v, in memory %+v", i, len(want), b, a)
		}
		if a.Reason != reason.OK {
			refused++
		}
	}
	if refused < len(want)/5 || refused > len(want)*4/5 {
		t.Errorf("%d of %d refused: the day shows too little", refused, len(want))
	}
}
