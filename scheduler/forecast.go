package scheduler

import (
	"penstock/reason"
	"penstock/scheduler/forecast"
)

const (
	tpotShare = 0.9  // of slo_tpot that a predicted step may take
	paceBelow = 64   // output tokens in the mean: longer answers average long steps out
	tooSlow   = 2    // times a lone request's step instead, on an engine that is too slow for slo_tpot
	netStart  = 0.95 // the watermarks under the forecast, see marks
	netStop   = 0.99
)

// forecasts reports whether the forecast decides alone: K is known, and how answers end.
// Until then the watermarks hold as well.
func (s *State) forecasts() bool {
	return s.cfg.Law == Forecast && s.sample.KVTokens > 0 && s.lengths.Known()
}

// future is the forecast's part of the law: KV at its peak and the time per token,
// which is a mean: a long prefill step alone is no reason.
func (s *State) future(r *Request, extra float64) reason.Reason {
	n := r.seqs()
	x := forecast.Plan{Sequences: n, Held: s.holds(s.prompt(r), 0, n)}
	if r.ExpectedOut > 0 {
		s.become(&x, r.Class, r.Model, clamp(r.ExpectedOut, 1, maxTokens), s.longest(s.prompt(r)/n, clamp(r.MaxTokens, 0, maxTokens)))
	}
	peak := s.peak.With(&x)
	if s.spare(peak, extra) < 0 {
		return reason.KVForecast
	}
	if !s.steps.Known() || s.live == 0 {
		return reason.OK
	}
	limit := tpotShare * s.queue.SLOTPOT(r.Tier, r.SLOTPOT).Seconds()
	if alone := s.steps.Alone(); alone > limit {
		limit = tooSlow * alone // nobody can be within it here
	}
	if s.pace(r, limit) {
		return reason.StepsSlow
	}
	running := float64(s.sample.Running + s.pendSeqs + n)
	if s.steps.Predict(running, s.share(peak)) > limit {
		return reason.StepsSlow
	}
	return reason.OK
}

// pace reports whether a prompt has to wait for the first token of the one before, so that
// steps without prompts come between: a chunk alone takes a step beyond the limit, a step
// without one between two keeps the mean within it, and answers are too short to average
// long steps out by themselves. Prompts that fit one good step together need no turns.
func (s *State) pace(r *Request, limit float64) bool {
	if s.pendSeqs == 0 || s.liveSeqs == s.pendSeqs || s.works-s.prompts >= paceBelow {
		return false
	}
	chunk, alone := s.speed.Prefill(s.cfg.ColdTokens).Seconds(), s.steps.Alone()
	together := s.speed.Prefill(s.pendTokens + s.prompt(r)).Seconds()
	return alone+chunk > limit && alone+chunk/2 <= limit && alone+together > limit
}

// plan is what a running request holds and may become.
func (s *State) plan(e *slot) forecast.Plan {
	p := forecast.Plan{Sequences: e.seqs, Held: s.holds(e.prompt, e.out, e.seqs), Out: e.out / e.seqs, Most: e.out / e.seqs}
	if !e.released && e.expected > 0 {
		s.become(&p, e.class, e.model, e.expected/e.seqs, s.longest(e.prompt/e.seqs, e.limit))
	}
	return p
}

// become fills in how long a plan's sequences go on: as their class or model does, else
// as the gateway expected, else, past that, a quarter of what they have.
func (s *State) become(p *forecast.Plan, class, model uint64, expected, most int) {
	p.Table, p.Most = s.lengths.Table(class, model, expected), most
	if p.Table != nil {
		return
	}
	if expected <= p.Out {
		expected = p.Out + p.Out/4 + halfBlock
	}
	p.Most = min(expected, most)
}

// holds is KV tokens: a part of the prompt may be shared, and the last block of a
// sequence is half empty.
func (s *State) holds(prompt, out, seqs int) int {
	return int(s.gauge.Sharing*float64(prompt)) + out + seqs*halfBlock
}

// replan looks at all that runs anew.
func (s *State) replan() {
	s.peak.Reset()
	for i := range s.slots {
		if e := &s.slots[i]; e.used && !e.freed {
			e.plan = s.plan(e)
			s.peak.Add(&e.plan)
		}
	}
}

// lives teaches that an answer goes on.
func (s *State) lives(e *slot) {
	if now := forecast.Step(e.out / e.seqs); now > e.passed {
		s.lengths.Learn(e.class, e.model, e.passed, now, e.seqs, false)
		e.passed = now
	}
}

// spare is the KV tokens that a peak leaves free beside the margin and what is others';
// below 0 it does not fit.
func (s *State) spare(peak int, extra float64) float64 {
	margin := s.cfg.Margin + s.gauge.Caution + extra
	if s.sample.Ranks > 1 {
		margin += s.cfg.Margin // which rank takes what is not known
	}
	return (1-margin)*float64(s.sample.KVTokens) - float64(peak) - s.gauge.Bias
}

// longest is the most output tokens one sequence can have: as the client limits it,
// and as the model's context does.
func (s *State) longest(prompt, limit int) int {
	most := maxTokens
	if s.maxLen > 0 {
		most = max(s.maxLen-prompt, 1)
	}
	if limit > 0 {
		most = min(most, limit)
	}
	return most
}

// countSeats learns max_num_seqs, which the engine does not export: sequences wait in it
// through two samples and two steps although nothing is prefilled and KV is free, so all
// seats are taken. One more than that is let in, so that a count too low is found out.
func (s *State) countSeats(was, p *Sample) {
	if p.Running > s.seats {
		s.seats = 0
	}
	full := func(p *Sample) bool {
		return p.Waiting > 0 && p.KV < s.cfg.KVStart && p.Running <= s.liveSeqs-s.pendSeqs
	}
	if full(was) && full(p) && p.Running == was.Running && p.Tokens != was.Tokens && (p.Steps == 0 || p.Steps >= was.Steps+2) {
		s.seats = p.Running
	}
}
