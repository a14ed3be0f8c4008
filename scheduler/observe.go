package scheduler

import (
	"math"
	"time"

	"penstock/reason"
)

const (
	freshPolls = 3           // a sample this many polls old is fresh
	blindAfter = time.Second // without a good sample for longer nothing is started
	stuckAfter = 5 * time.Second
	stuckFirst = 60 * time.Second // the first request after the process started may compile
	stepGain   = 0.2
	slowScrape = 20 * time.Millisecond // how long before At a page may have been made when Asked is not known
)

// Observe takes a good sample. One that is not newer than the last is ignored.
func (s *State) Observe(now time.Time, p Sample) {
	t, at := s.since(now), s.since(p.At)
	if s.have && at <= s.sampled {
		return
	}
	if !(p.KV >= 0) {
		p.KV = 0
	}
	p.KV = math.Min(p.KV, 1)
	p.Running, p.Waiting, p.Ranks = max(p.Running, 0), max(p.Waiting, 0), max(p.Ranks, 1)
	p.KVTokens = clamp(p.KVTokens, 0, maxTokens)

	was := s.sample
	if !s.have || p.Restarted || p.KV != was.KV || p.Running != was.Running || p.Waiting != was.Waiting ||
		p.Tokens != was.Tokens || p.Steps != was.Steps || p.Preemptions != was.Preemptions {
		s.moved = max(s.moved, t)
		s.probeEvery, s.probeAt = probeFirst, 0
	}
	if p.Restarted {
		s.speed.Restart()
		s.seats = 0
		s.closed = false
	}
	window := at - s.sampled
	s.gauge.Preempted(s.have && p.Preemptions > was.Preemptions && !p.Restarted, window.Seconds())
	if p.StepTime > 0 && s.have && window < blindAfter {
		steps := max(window.Seconds()/p.StepTime.Seconds(), 1)
		s.steps.Learn(float64(s.prefilled)/steps, float64(p.Running), p.KV, p.StepTime.Seconds())
	}
	s.prefilled = 0
	if p.StepTime > 0 {
		if s.step == 0 {
			s.step = p.StepTime
		}
		s.step += time.Duration(stepGain * float64(p.StepTime-s.step))
	}
	s.sample, s.sampled, s.have = p, at, true
	s.queue.SetKVTokens(p.KVTokens)

	asked := s.since(p.Asked)
	if p.Asked.IsZero() || asked > at {
		asked = at - slowScrape
	}
	s.countSeats(&was, &p)
	s.settle(t, asked-s.cfg.Visible)
	s.latch()
	s.flow.roll(t, s.closed)
	s.queue.Relieve(t)
}

// Condition says whether the engine can be judged and used: OK, Stale (both
// start requests), Starting, Blind, Asleep, Stuck or Draining.
func (s *State) Condition(now time.Time) reason.Reason { return s.condition(s.since(now)) }

func (s *State) condition(t time.Duration) reason.Reason {
	age := t - s.sampled
	switch {
	case s.draining:
		return reason.Draining
	case !s.have:
		return reason.Starting
	case age > blindAfter:
		return reason.Blind
	case s.sample.Asleep:
		return reason.Asleep
	case (s.live > 0 || s.busy()) && t-s.moved > s.patience():
		return reason.Stuck
	case age > freshPolls*s.cfg.Poll:
		return reason.Stale
	}
	return reason.OK
}

// patience is how long work may exist without any movement.
func (s *State) patience() time.Duration {
	if s.live > 0 && !s.speed.Warm() && s.sample.Tokens == 0 {
		return stuckFirst
	}
	return max(stuckAfter, 3*s.speed.Prefill(s.pendTokens))
}

// busy reports whether the gauges show work, ours or another client's.
func (s *State) busy() bool { return s.sample.Running > 0 || s.sample.Waiting > 0 }

// idle reports whether nothing runs and nothing is on its way.
func (s *State) idle() bool { return s.live == 0 && s.credit == 0 && !s.busy() }

// kv is the water level: the gauge plus what does not show in it yet.
func (s *State) kv() float64 {
	kv := max(s.sample.KV+s.share(s.unshown()-s.freed), 0)
	if s.sample.Ranks > 1 && s.credit > 0 {
		kv += s.cfg.Margin // the gauge is the fullest rank's; which rank takes the credit is not known
	}
	return kv
}

// unshown is the tokens of ours that the gauge does not hold yet.
func (s *State) unshown() int { return max(s.credit-s.partial, 0) }

// share is n tokens as a part of all KV tokens; 0 where the engine does not say.
func (s *State) share(n int) float64 {
	if s.sample.KVTokens == 0 {
		return 0
	}
	return float64(n) / float64(s.sample.KVTokens)
}

// marks are the watermarks: start below, stop from, reopen below. The forecast may
// fill an engine up to its margin, and so they are above that, while K is known.
func (s *State) marks() (start, stop, reopen float64) {
	if s.forecasts() {
		return netStart, netStop, netStart
	}
	return s.cfg.KVStart, s.cfg.KVStop, s.cfg.KVReopen
}

// latch closes the gate at the mark to stop and opens it below that to reopen.
func (s *State) latch() {
	_, stop, reopen := s.marks()
	switch kv := s.sample.KV; {
	case kv >= stop:
		s.closed = true
	case kv < reopen:
		s.closed = false
	}
}
