package scheduler

import (
	"testing"
	"time"

	"penstock/reason"
	"penstock/scheduler/forecast"
)

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
		patient bool
		pending int
		waited  time.Duration
		waits   float64 // of those who started
		drop    bool
	}{
		"in time":                             {Forecast, false, 5000, 200 * time.Millisecond, 1, false},
		"late, and patient":                   {Forecast, true, 5000, 1700 * time.Millisecond, 1, false},
		"late":                                {Forecast, false, 5000, 1700 * time.Millisecond, 1, true},
		"a mean prompt's room is kept out":    {Forecast, false, 5000, 1450 * time.Millisecond, 1, true},
		"no more than twice what starts wait": {Forecast, false, 5000, 1450 * time.Millisecond, 0.02, false},
		"late where it stands in no way":      {Forecast, false, 0, 5 * time.Second, 1, false},
		"late under the watermarks":           {Watermark, false, 5000, 1700 * time.Millisecond, 1, false},
		"behind more than the slo can take":   {Forecast, false, 21_000, 0, 1, true},
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
			for range 2 * forecast.Firsts { // 10,000 tokens per second
				s.speed.Learn(1000, 100*time.Millisecond)
			}
			now = now.Add(50 * time.Millisecond)
			s.Observe(now, Sample{At: now, Asked: now, KVTokens: 1_000_000, Ranks: 1})
			if tt.pending > 0 {
				s.Reserve(now, &Request{Hash: 1, PromptTokens: tt.pending, Sequences: 1})
				s.prompts, s.waits = 1000, tt.waits
			}
			v := s.Decide(now, &Request{Hash: 2, PromptTokens: 100, Sequences: 1, Opened: now.Add(-tt.waited), Patient: tt.patient})
			if drop := v.Action == Drop; drop != tt.drop || (drop && v.Reason != reason.Overloaded) {
				t.Errorf("Decide: got %v %v, want a drop for overload: %t", v.Action, v.Reason, tt.drop)
			}
		})
	}
}

// TestSeatsAreCounted: four run and one waits through two steps with KV free, so there
// are four seats; one more may wait inside, and if it runs there are more.
func TestSeatsAreCounted(t *testing.T) {
	now := time.Unix(1000, 0)
	s, err := New(DefaultConfig(), now)
	if err != nil {
		t.Fatal(err)
	}
	steps := 0.0
	observe := func(running, waiting int) {
		now, steps = now.Add(50*time.Millisecond), steps+2
		s.Observe(now, Sample{At: now, KV: 0.1, Running: running, Waiting: waiting, KVTokens: 100_000, Tokens: 100 * steps, Steps: steps, Ranks: 1})
	}
	r := Request{PromptTokens: 10, ExpectedOut: 100, Sequences: 1}
	start := func(first bool) {
		if id := s.Reserve(now, &r); first {
			s.Progress(now, id, 10, 1)
		}
	}
	decide := func(want reason.Reason) {
		t.Helper()
		r.Hash++
		if v := s.Decide(now, &r); v.Reason != want {
			t.Errorf("with %d seats and %d in flight: %v %v, want %v", s.View(now).Seats, s.View(now).Requests, v.Action, v.Reason, want)
		}
	}
	observe(0, 0)
	for range 4 {
		start(true)
	}
	start(false)
	observe(4, 1)
	decide(reason.OK) // one sample proves nothing
	observe(4, 1)
	decide(reason.SeatsFull)
	observe(5, 0)
	decide(reason.OK)
}

// TestTooSlowForItsLimit holds that an engine whose steps are longer than slo_tpot
// whatever it runs is not given one request at a time.
func TestTooSlowForItsLimit(t *testing.T) {
	for _, step := range []time.Duration{20 * time.Millisecond, 120 * time.Millisecond} {
		now := time.Unix(1000, 0)
		s, err := New(DefaultConfig(), now)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 * forecast.Firsts {
			s.speed.Learn(1000, 100*time.Millisecond)
		}
		r := Request{PromptTokens: 10, ExpectedOut: 100, Sequences: 1}
		for i := range 40 {
			now = now.Add(step)
			s.Observe(now, Sample{At: now, KVTokens: 100_000, Running: 1, Tokens: float64(i), StepTime: step, Ranks: 1})
			if i == 0 {
				s.Progress(now, s.Reserve(now, &r), 10, 1)
			}
		}
		r.Hash = 2
		if v := s.Decide(now, &r); v.Action != Start {
			t.Errorf("beside one request at %v a step: %v %v, want start", step, v.Action, v.Reason)
		}
	}
}

// TestShortAnswersPacePrompts: where a chunk takes a step beyond the limit, the next prompt
// waits for the first token of the one before, unless answers are long or nobody answers.
func TestShortAnswersPacePrompts(t *testing.T) {
	for _, tt := range []struct {
		name             string
		prompt, output   int
		chunk            time.Duration
		running, pending bool
		want             reason.Reason
	}{
		{"short answers", 1000, 28, 135 * time.Millisecond, true, true, reason.StepsSlow},
		{"short prompts", 100, 28, 135 * time.Millisecond, true, true, reason.OK},
		{"long answers", 1000, 200, 135 * time.Millisecond, true, true, reason.OK},
		{"short steps", 1000, 28, 50 * time.Millisecond, true, true, reason.OK},
		{"far too long steps", 1000, 28, 300 * time.Millisecond, true, true, reason.OK},
		{"nothing pending", 1000, 28, 135 * time.Millisecond, true, false, reason.OK},
		{"nobody answers", 1000, 28, 135 * time.Millisecond, false, true, reason.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			s, err := New(DefaultConfig(), now)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 * forecast.Firsts {
				s.speed.Learn(2048, tt.chunk)
			}
			for i := range 40 {
				now = now.Add(50 * time.Millisecond)
				s.Observe(now, Sample{At: now, KVTokens: 100_000, Running: 1, Tokens: float64(i), StepTime: 10 * time.Millisecond, Ranks: 1})
			}
			r := Request{PromptTokens: tt.prompt, ExpectedOut: tt.output, Sequences: 1}
			if tt.running {
				s.Progress(now, s.Reserve(now, &r), tt.prompt, 1)
			}
			if tt.pending {
				s.Reserve(now, &r)
			}
			s.prompts, s.works = 500, 500+float64(tt.output)
			r.Hash = 2
			if v := s.Decide(now, &r); v.Reason != tt.want {
				t.Errorf("%v %v, want %v", v.Action, v.Reason, tt.want)
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
	s.Observe(now, Sample{At: now, KVTokens: 1 << 21, Ranks: 1})
	r := Request{PromptTokens: 1000, ExpectedOut: 200, Sequences: 1, Class: 7, Model: 9, Opened: now}
	for i := range 256 {
		r.ExpectedOut = 100 + i*37%400
		s.Progress(now, s.Reserve(now, &r), 1000, 1)
	}
	s.Observe(now.Add(time.Millisecond), Sample{At: now.Add(time.Millisecond), KVTokens: 1 << 21, KV: 0.13, Running: 256, Ranks: 1, StepTime: 20 * time.Millisecond})
	b.ReportAllocs()
	for b.Loop() {
		if v := s.Decide(now, &r); v.Action != Start {
			b.Fatal(v)
		}
	}
}
