package scheduler

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/reason"
)

// TestPeakIsTheBatchsFuture: the peak is what a step-by-step look finds.
func TestPeakIsTheBatchsFuture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) plan {
			return plan{seqs: rapid.IntRange(1, 3).Draw(t, "seqs"), held: rapid.IntRange(0, 50).Draw(t, "held"), left: rapid.IntRange(0, 30).Draw(t, "left")}
		})
		all := rapid.SliceOfN(one, 1, 12).Draw(t, "plans")
		var f forecast
		for i, p := range all[1:] {
			p.slot = uint32(i)
			f.insert(p)
		}
		want := 0
		for step := range 31 {
			held := 0
			for _, p := range all {
				if p.left >= step {
					held += p.held + p.seqs*step
				}
			}
			want = max(want, held)
		}
		if got := f.peak(all[0]); got != want {
			t.Fatalf("peak of %+v is %d, want %d", all, got, want)
		}
		for i := range all[1:] {
			f.remove(uint32(i))
		}
		if len(f.plans) != 0 {
			t.Fatalf("%d plans left", len(f.plans))
		}
	})
}

func TestExpectGoesByWhatCameThisFar(t *testing.T) {
	l := newLengths()
	for range 60 { // half of a class's answers are short, half are long
		l.learn(7, 10)
		l.learn(7, 500)
		l.learn(9, 100)
	}
	for _, tt := range []struct {
		name                       string
		class, model               uint64
		out, expected, limit, want int
	}{
		{"a new one", 7, 9, 0, 1, maxTokens, 500},
		{"past the short ones", 7, 9, 200, 1, maxTokens, 300},
		{"its client's limit", 7, 9, 200, 1, 250, 50},
		{"a class not known goes by the model", 8, 9, 0, 1, maxTokens, 100},
		{"neither known: what the gateway expects", 1, 2, 30, 200, maxTokens, 170},
		{"past everything known", 7, 9, 800, 1, maxTokens, 800/4 + halfBlock},
		{"at its limit", 7, 9, 250, 1, 250, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := l.expect(tt.class, tt.model, tt.out, tt.expected, tt.limit); got != tt.want {
				t.Errorf("expect = %d, want %d", got, tt.want)
			}
		})
	}
	for i := range uint64(1000) {
		l.learn(100+i, 5)
	}
	if len(l.all) != lengthClasses || len(l.of) != lengthClasses {
		t.Errorf("%d classes held, %d found; bound %d", len(l.all), len(l.of), lengthClasses)
	}
}

// TestStepsAreLearned: the model finds the coefficients of an engine whose steps are
// linear, within the noise.
func TestStepsAreLearned(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	step := func(prefill, seqs, kv float64) float64 {
		return 0.010 + 66e-6*prefill + 40e-6*seqs + 0.015*kv
	}
	var m stepModel
	for range 2000 {
		prefill, seqs, kv := random.Float64()*500, 10+random.Float64()*100, random.Float64()*0.9
		m.learn(prefill, seqs, kv, step(prefill, seqs, kv)*(0.95+0.1*random.Float64()))
	}
	for _, x := range [][3]float64{{0, 50, 0.5}, {250, 64, 0.8}, {2048, 0, 0}} {
		got, want := m.step(x[0], x[1], x[2]), step(x[0], x[1], x[2])
		if math.Abs(got-want) > 0.1*want {
			t.Errorf("a step of %v takes %.1f ms, predicted %.1f", x, want*1e3, got*1e3)
		}
	}
}

func TestForecastAdmitsUntilThePeakIsFull(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Law = Forecast
	now := time.Unix(1000, 0)
	s, err := New(cfg, now)
	if err != nil {
		t.Fatal(err)
	}
	observe := func() {
		now = now.Add(50 * time.Millisecond)
		s.Observe(now, Sample{At: now, Asked: now.Add(-time.Millisecond), KVTokens: 10_000, Ranks: 1})
	}
	observe()
	r := Request{PromptTokens: 100, ExpectedOut: 900, Sequences: 1, Opened: now}
	for i := 1; ; i++ {
		r.Hash = uint64(i)
		v := s.Decide(now, &r)
		if v.Action != Start {
			// Each peaks at 1,000 and half a block: nine fit below 9,500, though the gauge is empty.
			if i != 10 || v.Reason != reason.KVForecast {
				t.Errorf("request %d: %v %v, want the tenth to wait for kv_forecast", i, v.Action, v.Reason)
			}
			return
		}
		s.Progress(now, s.Reserve(now, &r), 100, 1)
		if i > 20 {
			t.Fatal("twenty requests of 1,000 tokens started on an engine of 10,000")
		}
	}
}

func TestForecastGivesUpWhoCannotBeInTime(t *testing.T) {
	tests := map[string]struct {
		law     Law
		pending int
		waited  time.Duration
		drop    bool
	}{
		"in time":                           {Forecast, 5000, 200 * time.Millisecond, false},
		"late":                              {Forecast, 5000, 1700 * time.Millisecond, true},
		"a mean prompt's room is kept out":  {Forecast, 5000, 1450 * time.Millisecond, true},
		"late where it stands in no way":    {Forecast, 0, 5 * time.Second, false},
		"late under the watermarks":         {Watermark, 5000, 1700 * time.Millisecond, false},
		"behind more than the slo can take": {Forecast, 21_000, 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Law = tt.law
			now := time.Unix(1000, 0)
			s, err := New(cfg, now)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 * coldFirst { // 10,000 tokens per second
				s.speed.learn(1000, 100*time.Millisecond)
			}
			now = now.Add(50 * time.Millisecond)
			s.Observe(now, Sample{At: now, Asked: now, KVTokens: 1_000_000, Ranks: 1})
			if tt.pending > 0 {
				s.Reserve(now, &Request{Hash: 1, PromptTokens: tt.pending, Sequences: 1})
				s.prompts = 1000
			}
			v := s.Decide(now, &Request{Hash: 2, PromptTokens: 100, Sequences: 1, Opened: now.Add(-tt.waited)})
			if drop := v.Action == Drop; drop != tt.drop || (drop && v.Reason != reason.Overloaded) {
				t.Errorf("Decide: got %v %v, want a drop for overload: %t", v.Action, v.Reason, tt.drop)
			}
		})
	}
}

func BenchmarkDecideForecast(b *testing.B) {
	cfg := DefaultConfig()
	cfg.Law = Forecast
	now := time.Unix(1000, 0)
	s, err := New(cfg, now)
	if err != nil {
		b.Fatal(err)
	}
	now = now.Add(50 * time.Millisecond)
	s.Observe(now, Sample{At: now, KVTokens: 1 << 20, Ranks: 1})
	r := Request{PromptTokens: 1000, ExpectedOut: 200, Sequences: 1, Class: 7, Model: 9, Opened: now}
	for i := range 256 {
		r.ExpectedOut = 100 + i*37%400
		s.Progress(now, s.Reserve(now, &r), 1000, 1)
	}
	s.Observe(now.Add(time.Millisecond), Sample{At: now.Add(time.Millisecond), KVTokens: 1 << 20, KV: 0.5, Running: 256, Ranks: 1, StepTime: 20 * time.Millisecond})
	b.ReportAllocs()
	for b.Loop() {
		if v := s.Decide(now, &r); v.Action != Start {
			b.Fatal(v)
		}
	}
}
