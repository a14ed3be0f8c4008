package scheduler

import (
	"time"

	"penstock/reason"
	"penstock/scheduler/forecast"
)

// View is the state in numbers, for metrics, the row and /debug/state.
type View struct {
	Condition  reason.Reason
	Gate       reason.Reason // OK when a small request would start now, else what is in its way
	SampleAge  time.Duration // 0 before the first sample
	KV         float64       // the gauge, 0..1
	Running    int           // the gauge
	Waiting    int           // the gauge
	KVTokens   int           // K; 0 = not exported
	StepTime   time.Duration // 0 = not known
	StartBelow float64       // the watermarks as they hold now, shares of K
	StopFrom   float64
	OpenBelow  float64
	Peak       float64       // forecast of the most KV that what runs will use, as a share of K; 0 = K is not known
	Seats      int           // sequences the engine runs at most, where they were seen to be all taken; 0 = not known
	Credit     int           // tokens the gauge does not show yet
	Freeness   int           // KV tokens that may still be started, never negative: the mark to start below x K - gauge - credit, and under Forecast no more than the peak leaves
	Pending    int           // prompt tokens without a first token
	PendingSeq int           // sequences without a first token
	Requests   int           // in flight
	Tokens     int           // prompt and output tokens in flight
	Prefill    float64       // prompt tokens per second; 0 = not known
	FirstToken time.Duration // from start to first token, in the mean; 0 = not known
	Start      time.Duration // predicted wait of a request that comes now: the tokens to be worked off before the gate opens / DrainRate; 0 = none, or not known
	Relief     uint16        // tiers that have relief, 1 << their place
	DrainRate  float64       // expected tokens started per second while work waits; until that is known as fast as their prompts are computed, which is more; 0 = not known
}

// View reads the state; it changes nothing that a decision sees.
func (s *State) View(now time.Time) View {
	t := s.since(now)
	v := View{
		Condition: s.condition(t), KV: s.sample.KV, Running: s.sample.Running, Waiting: s.sample.Waiting,
		KVTokens: s.sample.KVTokens, StepTime: s.step, Seats: s.seats, Credit: s.unshown(), Pending: s.pendTokens, PendingSeq: s.pendSeqs,
		Relief: s.queue.Relieving(), Requests: s.live, Tokens: s.liveTokens, Prefill: s.speed.Rate(), FirstToken: s.speed.Mean(),
	}
	if s.have {
		v.SampleAge = max(t-s.sampled, 0)
	}
	v.StartBelow, v.StopFrom, v.OpenBelow = s.marks()
	free := (v.StartBelow - s.kv()) * float64(s.sample.KVTokens)
	if s.sample.KVTokens > 0 {
		peak := s.peak.With(&forecast.Plan{})
		v.Peak = s.share(peak + int(s.gauge.Bias))
		if s.forecasts() {
			free = min(free, s.spare(peak, 0))
		}
	}
	v.Freeness = max(int(free), 0)
	if v.DrainRate = s.flow.drain(); v.DrainRate == 0 {
		v.DrainRate = s.speed.Rate() * s.works / max(s.prompts, 1e-9) // nothing can be taken faster than its prompt is computed
	}
	v.Gate, _ = s.judge(now, t, &Request{PromptTokens: 1, Sequences: 1})
	if v.Gate != reason.OK && v.DrainRate > 0 {
		v.Start = max(forecast.Seconds(max(-free, 0)/v.DrainRate), s.speed.Prefill(v.Pending)) // what is missing holds prompts pending already
	}
	return v
}
