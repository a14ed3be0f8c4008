package scheduler

import (
	"time"

	"penstock/reason"
	"penstock/scheduler/forecast"
	"penstock/scheduler/order"
)

const (
	probeFirst = 2 * time.Second
	probeMax   = 30 * time.Second
	startsGain = 0.02 // about the last 50 starts
	ownTimes   = 3    // mean prompts that a wait leaves room for, see DESIGN.md
	waitTimes  = 2    // the same, in mean waits until the own prefill begins
	lateShare  = 8    // late heads keep prefill busy for a part of slo_ttft only: the rest is for who comes in time
)

// Decide says what to do with a delivered head. It keeps small state of its own
// (who waits, the probe's timer) but reserves nothing: on Start call Reserve.
func (s *State) Decide(now time.Time, r *Request) Verdict {
	t := s.since(now)
	s.flow.roll(t, s.closed)
	s.queue.Relieve(t)
	if why := s.dead(now, r); why != reason.None {
		s.queue.Forget(t, r.Hash)
		return Verdict{Action: Drop, Reason: why}
	}
	why, late := s.judge(now, t, r)
	if s.hopeless(t, r, why) {
		s.queue.Forget(t, r.Hash)
		return Verdict{Action: Drop, Reason: reason.Overloaded}
	}
	if why == reason.OK {
		h := s.head(t, r)
		why = s.queue.Yield(t, s.first(), &h, late)
	}
	if why == reason.OK || s.probe(t, why) {
		return s.startAs(why)
	}
	return s.refuse(now, t, r, why)
}

// dead says why a head will never run here, or None. Capacity plays no part.
func (s *State) dead(now time.Time, r *Request) reason.Reason {
	switch {
	case r.Aborted:
		return reason.Aborted
	case !r.Deadline.IsZero() && now.After(r.Deadline):
		return reason.DeadlinePassed
	case s.maxLen > 0 && r.SafePrompt >= s.maxLen:
		return reason.TooLarge
	case s.sample.KVTokens > 0 && r.SafePrompt+1 > s.rankTokens():
		return reason.TooLarge
	}
	return reason.None
}

// rankTokens is what one sequence can use at most: a rank's share of K.
func (s *State) rankTokens() int { return max(s.sample.KVTokens/s.sample.Ranks, 1) }

// judge is the law for one head: OK, or what is in its way, and whether it is
// late.
func (s *State) judge(now time.Time, t time.Duration, r *Request) (why reason.Reason, late bool) {
	late = s.late(t, r)
	c := s.condition(t)
	if c != reason.OK && c != reason.Stale {
		return c, late
	}
	s.latch()
	why = s.room(now, r, 0)
	if why == reason.OK && c == reason.Stale {
		extra := s.cfg.Margin
		if s.sample.Ranks > 1 {
			extra *= 2
		}
		if s.room(now, r, extra) != reason.OK {
			return reason.Stale, late
		}
	}
	if why == reason.OK {
		why = s.line(r, late)
	}
	if why == reason.OK {
		why = s.allows(t, r)
	}
	return why, late
}

// room applies the watermarks; extra is kept free on top.
func (s *State) room(now time.Time, r *Request, extra float64) reason.Reason {
	kv, n := s.kv()+extra, r.seqs()
	start, stop, _ := s.marks()
	own := 0.0 // the prompt, as a share of what one rank has
	if s.sample.KVTokens > 0 {
		own = float64(s.prompt(r)) / float64(s.rankTokens())
	}
	waiting, idle := max(s.sample.Waiting, s.pendSeqs), s.idle()
	full := reason.KVHigh
	if s.sample.KV < start {
		full = reason.KVCredit
	}
	switch {
	case kv >= stop:
		return full
	case s.closed:
		return reason.KVHigh
	case idle && kv < start:
		return reason.OK // also what fits only alone, or has more sequences than may wait
	case s.alone(r):
		return reason.KVCredit
	case waiting >= s.cfg.WaitMax || s.pendSeqs+n > s.cfg.WaitMax:
		return reason.WaitingHigh
	case s.seats > 0 && s.liveSeqs+s.foreign+n > s.seats+1:
		return reason.SeatsFull
	case waiting >= s.cfg.WaitSome && kv+own >= start:
		return reason.WaitingSome
	}
	if s.cfg.Law == Forecast && s.sample.KVTokens > 0 {
		if why := s.future(r, extra); why != reason.OK || s.forecasts() {
			return why
		}
	}
	switch {
	case kv >= start && draw(r.Hash, uint64(now.Unix())) < s.odds(kv):
		if full == reason.KVCredit {
			return full
		}
		return reason.KVBand
	case kv+own >= 1-s.cfg.Margin:
		return reason.KVCredit // it would leave less than the margin free
	}
	return reason.OK
}

// odds is the probability to wait between the two watermarks.
func (s *State) odds(kv float64) float64 {
	return max(0.10, (kv-s.cfg.KVStart)/(s.cfg.KVStop-s.cfg.KVStart))
}

// alone reports whether a request leaves no room for another one.
func (s *State) alone(r *Request) bool {
	if s.sample.KVTokens == 0 {
		return false
	}
	return float64(s.prompt(r)+r.expected()) > (1-s.cfg.Margin)*float64(s.rankTokens())
}

// late reports whether a head cannot have its first token in time any more.
// Waiting does not change the answer: what it waits, the pending prompts shrink.
func (s *State) late(t time.Duration, r *Request) bool {
	ahead := s.pendTokens
	if r.SLOTTFTNamed {
		ahead += s.prompt(r)
	}
	wait := time.Duration(0)
	if !r.Opened.IsZero() {
		wait = max(t-s.since(r.Opened), 0)
	}
	return wait+s.speed.Predict(ahead) > s.slo(r)
}

// hopeless reports whether the forecast gives a head up: what is pending takes more
// than it has left, and it would stand in others' way. Without what is added against
// errors: nobody is sent away for being nearly late. Where nothing pends and nothing
// is in the way, a late answer costs nobody anything.
// The room for mean prompts is kept out of everybody's wait, so that most first
// tokens are in time with the own prefill too and no length is preferred; at most
// twice the wait of those who start: where only bursts make them wait, it would turn bursts away.
func (s *State) hopeless(t time.Duration, r *Request, why reason.Reason) bool {
	if s.cfg.Law != Forecast || r.Patient || r.Opened.IsZero() || !s.speed.Known() {
		return false
	}
	c := s.condition(t)
	if (c != reason.OK && c != reason.Stale) || (why == reason.OK && s.pendSeqs == 0) {
		return false
	}
	kept := min(ownTimes*s.prompts*s.speed.PerToken(), waitTimes*s.waits)
	return s.wait(t, r) > s.slo(r)-min(forecast.Seconds(kept), s.slo(r)/2)
}

// wait is how long a head that starts now has waited by the time its own prefill begins.
func (s *State) wait(t time.Duration, r *Request) time.Duration {
	wait := s.speed.Prefill(s.pendTokens)
	if !r.Opened.IsZero() {
		wait += max(t-s.since(r.Opened), 0)
	}
	return wait
}

// first is when a start has its first token, its own prompt not counted.
func (s *State) first() time.Duration { return s.speed.Predict(s.pendTokens) }

// head is a request as the order sees it.
func (s *State) head(t time.Duration, r *Request) order.Head {
	h := order.Head{
		Hash: r.Hash, Tenant: r.Tenant, Tier: r.Tier, Prompt: s.prompt(r), Output: r.expected(),
		Opened: t, Deadline: order.Never, SLO: s.slo(r),
	}
	if !r.Opened.IsZero() {
		h.Opened = s.since(r.Opened)
	}
	if !r.Deadline.IsZero() {
		h.Deadline = s.since(r.Deadline)
	}
	return h
}

func (s *State) slo(r *Request) time.Duration {
	if r.SLOTTFT > 0 {
		return r.SLOTTFT
	}
	return s.queue.SLOTTFT(r.Tier)
}

// line is the TTFT line. With nothing pending it holds: no later moment is
// better, and a prediction gone wrong could otherwise never be corrected.
func (s *State) line(r *Request, late bool) reason.Reason {
	if s.pendSeqs == 0 {
		return reason.OK
	}
	if !s.speed.Known() {
		if s.pendTokens+s.prompt(r) > s.cfg.ColdTokens || s.pendSeqs+r.seqs() > s.cfg.ColdSeqs {
			return reason.Cold
		}
		return reason.OK
	}
	if !late {
		return reason.OK
	}
	slo := s.slo(r)
	if s.speed.Predict(s.pendTokens) > slo || (s.pendTokens > s.cfg.ColdTokens && s.speed.Prefill(s.pendTokens) > slo/lateShare) {
		return reason.PrefillBusy
	}
	return reason.OK
}

// allows is what tiers and tenants say about a request: its tier's ceiling, and what may
// be pending before and with it.
func (s *State) allows(t time.Duration, r *Request) reason.Reason {
	switch {
	case s.queue.Full(r.Tier, s.prompt(r)+r.expected()):
		return reason.TierCeiling
	case s.pendSeqs > 0 && s.speed.Prefill(s.pendTokens+s.prompt(r)) > s.queue.MostWith(t, r.Tier, s.step):
		return reason.TierTurn
	case s.pendTokens > s.cfg.ColdTokens && s.speed.Prefill(s.pendTokens) > s.queue.MostPending(r.Tier, r.Tenant):
		return reason.PrefillBusy
	}
	return reason.OK
}

// probe lets one head through a gate that gauges closed and that nothing can
// open: the ledger is empty and nothing has moved for a while. Its Reserve starts
// the wait for the next.
func (s *State) probe(t time.Duration, why reason.Reason) bool {
	return s.frozen(why) && t >= s.nextProbe()
}

// frozen reports whether only a probe can find out if why still holds.
func (s *State) frozen(why reason.Reason) bool {
	switch why {
	case reason.KVHigh, reason.KVBand, reason.KVCredit, reason.KVForecast, reason.SeatsFull, reason.WaitingHigh, reason.WaitingSome, reason.Stuck:
		return s.live == 0
	}
	return false
}

func (s *State) nextProbe() time.Duration {
	return max(max(s.moved, s.emptied)+probeFirst, s.probeAt)
}

// mix spreads a hash and a number over 64 bits (splitmix64's finaliser).
func mix(hash, n uint64) uint64 {
	x := hash + (n+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// draw is a number in 0..1 from a hash and a number.
func draw(hash, n uint64) float64 { return float64(mix(hash, n)>>11) / (1 << 53) }
