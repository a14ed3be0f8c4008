package scheduler

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/reason"
	"penstock/scheduler/forecast"
)

func TestConfigNamesTheBadField(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"Poll":       func(c *Config) { c.Poll = 0 },
		"Visible":    func(c *Config) { c.Visible = -1 },
		"KVStart":    func(c *Config) { c.KVStart = 0.95 },
		"KVStop":     func(c *Config) { c.KVStop = 1.2 },
		"KVReopen":   func(c *Config) { c.KVReopen = 0.85 },
		"Margin":     func(c *Config) { c.Margin = 0.5 },
		"WaitSome":   func(c *Config) { c.WaitSome = 21 },
		"ColdTokens": func(c *Config) { c.ColdTokens = 0 },
		"ColdSeqs":   func(c *Config) { c.ColdSeqs = 0 },
		"SLOTTFT":    func(c *Config) { c.SLOTTFT = 0 },
	} {
		c := watermarks()
		spoil(&c)
		if _, err := New(c, time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), "scheduler: "+field+" is ") {
			t.Errorf("New with a bad %s: error %v, want one that names it", field, err)
		}
	}
}

// naive recounts the ledger's sums from its slots.
func naive(l *ledger) (n ledger) {
	for _, e := range l.slots {
		if !e.used {
			continue
		}
		n.credit += e.held() - e.shown
		if e.released {
			continue
		}
		n.live++
		n.liveTokens += e.held()
		if !e.begun {
			n.pendTokens += e.prompt
			n.pendSeqs += e.seqs
		}
	}
	return n
}

// Any order of events keeps the sums right and the rules that must never break.
func TestAnyOrderOfEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		s, err := New(watermarks(), now)
		if err != nil {
			t.Fatal(err)
		}
		var slots []Slot
		k := rapid.SampledFrom([]int{0, 2000, 100_000}).Draw(t, "k")
		observe := func() {
			s.Observe(now, Sample{
				At: now, KV: rapid.Float64Range(-0.1, 1.1).Draw(t, "kv"), Running: rapid.IntRange(0, 3).Draw(t, "running"),
				Waiting: rapid.IntRange(0, 25).Draw(t, "waiting"), KVTokens: k, Ranks: rapid.IntRange(0, 2).Draw(t, "ranks"),
				StepTime: time.Duration(rapid.IntRange(0, 1).Draw(t, "step")) * 20 * time.Millisecond, Restarted: rapid.IntRange(0, 9).Draw(t, "new") == 0,
			})
		}
		actions := map[string]func(*rapid.T){
			"advance": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 50, 200, 2000}).Draw(t, "ms")) * time.Millisecond)
			},
			"observe": func(*rapid.T) { observe() },
			"arrive": func(t *rapid.T) {
				r := Request{
					Hash: rapid.Uint64Range(0, 50).Draw(t, "hash"), PromptTokens: rapid.IntRange(-10, 3000).Draw(t, "prompt"),
					ExpectedOut: rapid.IntRange(0, 300).Draw(t, "out"), Sequences: rapid.SampledFrom([]int{-1, 0, 1, 1, 1, 4, 30}).Draw(t, "n"),
					Tier: rapid.IntRange(-1, 3).Draw(t, "tier"), Tenant: rapid.Uint64Range(0, 3).Draw(t, "tenant"),
					Opened: now.Add(-time.Duration(rapid.IntRange(0, 5000).Draw(t, "waited")) * time.Millisecond), Stream: rapid.Bool().Draw(t, "stream"),
				}
				idle, before := s.idle(), s.pendSeqs
				var v Verdict
				if rapid.Bool().Draw(t, "pick") {
					_, v = s.Pick(now, []Request{r})
				} else {
					v = s.Decide(now, &r)
				}
				c := s.Condition(now)
				if v.Action != Start {
					if v.Reason == reason.None || v.Reason == reason.OK || v.After < minPause || v.After > maxPause {
						t.Fatalf("refused with %+v", v)
					}
					return
				}
				if c != reason.OK && c != reason.Stale && v.Reason != reason.Probe {
					t.Fatalf("%s while %s: %+v", v.Action, c, v)
				}
				if v.Reason == reason.OK && s.sample.KV >= s.cfg.KVStop {
					t.Fatalf("start at a gauge of %g", s.sample.KV)
				}
				slots = append(slots, s.Reserve(now, &r))
				if v.Reason == reason.OK && !idle && s.pendSeqs > s.cfg.WaitMax {
					t.Fatalf("%d own sequences wait after a start, %d before", s.pendSeqs, before)
				}
			},
			"progress": func(t *rapid.T) {
				if len(slots) > 0 {
					s.Progress(now, rapid.SampledFrom(slots).Draw(t, "slot"), rapid.IntRange(-1, 3000).Draw(t, "prompt"), rapid.IntRange(-1, 400).Draw(t, "out"))
				}
			},
			"release": func(t *rapid.T) {
				if len(slots) > 0 { // may name one that was released before
					s.Release(now, rapid.SampledFrom(slots).Draw(t, "slot"))
				}
			},
			"backlog": func(t *rapid.T) {
				s.SetBacklog(rapid.IntRange(-1, 3).Draw(t, "tier"), rapid.SampledFrom([]int{0, 6000, 20_000}).Draw(t, "n"))
			},
			"": func(t *rapid.T) {
				inflight, tokens := 0, 0
				for i := range s.slots {
					if e := &s.slots[i]; e.used && !e.released {
						inflight++
						tokens += e.prompt + max(e.out, e.expected)
					}
				}
				if n, held := s.queue.Held(0); n != inflight || held != tokens {
					t.Fatalf("the tier has %d requests of %d tokens, want %d of %d", n, held, inflight, tokens)
				}
				n := naive(&s.ledger)
				if n.live != s.live || n.liveTokens != s.liveTokens || n.pendTokens != s.pendTokens || n.pendSeqs != s.pendSeqs || n.credit != s.credit {
					t.Fatalf("sums %d %d %d %d %d, recounted %d %d %d %d %d", s.live, s.liveTokens, s.pendTokens, s.pendSeqs, s.credit, n.live, n.liveTokens, n.pendTokens, n.pendSeqs, n.credit)
				}
				if s.credit < 0 || s.pendTokens < 0 || s.pendSeqs < 0 || s.liveTokens < 0 {
					t.Fatalf("a sum is negative: %+v", n)
				}
			},
		}
		observe()
		t.Repeat(actions)
		for _, slot := range slots {
			s.Release(now, slot)
		}
		now = now.Add(time.Second)
		s.Observe(now, Sample{At: now, KVTokens: k})
		if v := s.View(now); v.Requests != 0 || v.Tokens != 0 || v.Credit != 0 || v.Pending != 0 || v.PendingSeq != 0 || len(s.free) != len(s.slots) {
			t.Fatalf("at rest: %+v, %d of %d slots free", v, len(s.free), len(s.slots))
		}
	})
}

// Only the first request of a process may compile: it teaches nothing.
func TestFirstRequestOfAProcessTeachesNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	s, err := New(watermarks(), now)
	if err != nil {
		t.Fatal(err)
	}
	slot := s.Reserve(now, &Request{PromptTokens: 100, Stream: true})
	now = now.Add(40 * time.Second)
	s.Progress(now, slot, 0, 1)
	if v := s.View(now); v.Prefill != 0 || v.FirstToken != 0 {
		t.Errorf("learned %.0f tokens/s and %s from it", v.Prefill, v.FirstToken)
	}
}

// Plain answers and embeddings teach by their end, less the time of their decode.
func TestPlainAnswersTeach(t *testing.T) {
	now := time.Unix(1000, 0)
	s, err := New(watermarks(), now)
	if err != nil {
		t.Fatal(err)
	}
	s.Observe(now, Sample{At: now, StepTime: 10 * time.Millisecond})
	for range 5 {
		slot := s.Reserve(now, &Request{PromptTokens: 1000, ExpectedOut: 50})
		now = now.Add(600 * time.Millisecond) // 100 ms of prefill, 50 steps
		s.Progress(now, slot, 1000, 50)
		s.Release(now, slot)
	}
	if got := s.View(now).Prefill; got < 9000 || got > 11000 {
		t.Errorf("prefill rate from plain answers is %.0f tokens/s, want 10000", got)
	}
	for range 100 {
		slot := s.Reserve(now, &Request{PromptTokens: 1000})
		now = now.Add(50 * time.Millisecond)
		s.Progress(now, slot, 1000, 0)
		s.Release(now, slot)
	}
	if got := s.View(now).Prefill; got < 18000 || got > 22000 {
		t.Errorf("prefill rate from embeddings is %.0f tokens/s, want 20000", got)
	}
}

// The view's predicted start is what is above the mark, or the prompts pending where
// they are more, over the drain rate; nothing while the gate is open.
func TestViewStart(t *testing.T) {
	s, now := full(t, 5, 0.90)
	observe := func(kv float64) View {
		now = now.Add(50 * time.Millisecond)
		s.Observe(now, Sample{At: now, KV: kv, Running: 5, KVTokens: 100_000})
		return s.View(now)
	}
	v := observe(0.90)
	want := forecast.Seconds(0.10 * 100_000 / v.DrainRate)
	if v.DrainRate == 0 || v.Start < want*95/100 || v.Start > want*105/100 {
		t.Errorf("start in %s at %.0f tokens/s, want about %s", v.Start, v.DrainRate, want)
	}
	if v = observe(0.10); v.Start != 0 {
		t.Errorf("start in %s while the gate is %s", v.Start, v.Gate)
	}
	for range 30 {
		s.Reserve(now, &Request{PromptTokens: 1000, Stream: true})
	}
	if v, want = observe(0.10), s.speed.Prefill(30_000); v.Start != want {
		t.Errorf("start in %s with 30,000 prompt tokens pending, the gate is %s; want %s", v.Start, v.Gate, want)
	}
}

// TestDrainOfTinyPrompts holds that an engine which never had to let anybody wait is not
// taken for one that takes as few tokens as its tiny prompts have.
func TestDrainOfTinyPrompts(t *testing.T) {
	now := time.Unix(1000, 0)
	s, err := New(DefaultConfig(), now)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		now = now.Add(50 * time.Millisecond)
		s.Observe(now, Sample{At: now, Running: 1, KVTokens: 100_000})
		id := s.Reserve(now, &Request{PromptTokens: 4, ExpectedOut: 200, Stream: true})
		now = now.Add(20 * time.Millisecond)
		s.Progress(now, id, 4, 1)
		s.Finish(now, id)
	}
	if got := s.View(now).DrainRate; got < 0.9*50*204 {
		t.Errorf("drains %.0f tokens/s, want 50 requests of 204 tokens", got)
	}
}

// full is a state with n requests in flight on a fresh engine and 128 heads seen.
func full(tb testing.TB, n int, kv float64) (*State, time.Time) {
	now := time.Unix(1000, 0)
	s, err := New(watermarks(), now)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		slot := s.Reserve(now, &Request{Hash: uint64(i), PromptTokens: 1000, ExpectedOut: 200, Stream: true})
		now = now.Add(20 * time.Millisecond)
		s.Progress(now, slot, 1000, 1)
	}
	now = now.Add(50 * time.Millisecond)
	s.Observe(now, Sample{At: now, KV: kv, Running: n, KVTokens: 1 << 20})
	s.SetPeers(make([]Peer, 8))
	for i := range 200 {
		r := waiter(now, i)
		s.refuse(now, s.since(now), &r, reason.KVHigh)
	}
	return s, now
}

func waiter(now time.Time, i int) Request {
	return Request{
		Hash: mix(7, uint64(i)), PromptTokens: 1000, ExpectedOut: 200, Sequences: 1, Stream: true,
		Opened: now.Add(-time.Duration(i) * time.Millisecond), Deadline: now.Add(30 * time.Second),
	}
}

func TestNoAllocations(t *testing.T) {
	s, now := full(t, 200, 0.5)
	r := waiter(now, 5)
	heads := []Request{r, waiter(now, 6), waiter(now, 7)}
	peers := make([]Peer, 8)
	if got := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Millisecond)
		s.SetPeers(peers)
		s.Observe(now, Sample{At: now, KV: 0.5, Running: 200, KVTokens: 1 << 20})
		if v := s.Decide(now, &r); v.Action != Start {
			t.Fatalf("verdict %+v, want start", v)
		}
		slot := s.Reserve(now, &r)
		s.Progress(now, slot, 1000, 1)
		s.Pick(now, heads)
		s.View(now)
		s.Release(now, slot)
		now = now.Add(time.Millisecond)
		s.Observe(now, Sample{At: now, KV: 0.95, Running: 200, KVTokens: 1 << 20})
		s.Decide(now, &r)
		s.Pick(now, heads)
		now = now.Add(time.Millisecond)
		s.Observe(now, Sample{At: now, KV: 0.5, Running: 200, KVTokens: 1 << 20})
	}); got != 0 {
		t.Errorf("%.1f allocations per round, want 0", got)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		name string
		kv   float64
	}{{"start", 0.5}, {"suspend", 0.95}} {
		b.Run(c.name, func(b *testing.B) {
			s, now := full(b, 256, c.kv)
			r := waiter(now, 5)
			b.ReportAllocs()
			for b.Loop() {
				s.Decide(now, &r)
			}
		})
	}
}

func BenchmarkPick(b *testing.B) {
	s, now := full(b, 256, 0.95)
	var heads []Request
	for i := range 8 {
		heads = append(heads, waiter(now, i))
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Pick(now, heads)
	}
}

func BenchmarkObserve(b *testing.B) {
	s, now := full(b, 256, 0.5)
	p := Sample{KV: 0.5, Running: 256, KVTokens: 1 << 20}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		p.At = now
		s.Observe(now, p)
	}
}

// TestFinishFreesAtOnce: what a finished answer held is off the level before a sample
// shows it; what an aborted one held is not.
func TestFinishFreesAtOnce(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		name string
		end  func(*State, time.Time, Slot)
		want float64
	}{{"finished", (*State).Finish, 0.2}, {"aborted", (*State).Release, 0.5}} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(watermarks(), start)
			if err != nil {
				t.Fatal(err)
			}
			now := start
			sample := func(kv float64) {
				now = now.Add(50 * time.Millisecond)
				s.Observe(now, Sample{At: now, Asked: now.Add(-5 * time.Millisecond), KV: kv, Running: 2, KVTokens: 10_000, Ranks: 1})
			}
			sample(0)
			id := s.Reserve(now, &Request{PromptTokens: 2900, ExpectedOut: 100, Sequences: 1, Stream: true})
			s.Progress(now, id, 2900, 100)
			sample(0.5) // 0.3 ours, 0.2 of others
			tt.end(s, now, id)
			if got := s.kv(); math.Abs(got-tt.want) > 1e-9 {
				t.Errorf("level %v after the end, want %v", got, tt.want)
			}
			sample(0.2)
			if got := s.kv(); math.Abs(got-0.2) > 1e-9 || s.credit != 0 || s.freed != 0 {
				t.Errorf("level %v, credit %d, freed %d after a sample without it; want 0.2, 0, 0", got, s.credit, s.freed)
			}
		})
	}
}
