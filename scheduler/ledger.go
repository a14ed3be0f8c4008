package scheduler

import (
	"time"

	"penstock/scheduler/forecast"
	"penstock/scheduler/order"
)

const (
	firstSlots = 256     // room for this many in flight before the ledger grows
	maxTokens  = 1 << 40 // no single count is believed above this, so that sums cannot overflow
	maxSeqs    = 1 << 16
	halfBlock  = 16 // tokens of a sequence's last block that hold nothing, in the mean, at the largest usual block of 32
)

// slot is one reservation. It leaves the ledger when it is released and the
// gauges cannot be missing it any more.
type slot struct {
	gen       uint32
	used      bool // not in the free list
	released  bool // gone from the engine, kept until a sample can know it
	freed     bool // its blocks are free for certain, whatever the last sample shows
	stream    bool
	cold      bool          // started before the engine's first token: teaches nothing
	begin     time.Duration // reserved
	end       time.Duration // released
	first     time.Duration // first token, assumed for a plain answer; meaningful with begun
	begun     bool          // it has a first token
	taught    bool          // and it was learned from
	guess     time.Duration // when a plain answer is assumed to have its first token; 0 = cannot say
	ahead     int           // prompt tokens pending when it started, its own included
	prompt    int
	estimated int // the same as it came with the request; 0 once it is counted
	out       int
	expected  int // output over all sequences
	seqs      int
	limit     int // most output tokens of one sequence; 0 = none
	class     uint64
	model     uint64
	shown     int           // tokens of it in the last sample's gauge
	plan      forecast.Plan // as it is in the peak
	passed    int           // steps of a length it is known to have passed
	bill      order.Bill
}

func (e *slot) held() int { return e.prompt + e.out }

// ledger is what was started here, with the sums a decision needs.
type ledger struct {
	slots      []slot
	free       []uint32
	live       int           // reserved and not released
	liveTokens int           // prompt and output tokens of those
	pendTokens int           // prompt tokens of those without a first token
	pendSeqs   int           // sequences without a first token
	liveSeqs   int           // sequences of what is live
	foreign    int           // sequences of others at the engine, as of the last sample
	credit     int           // tokens the last sample does not show, released ones included until a sample can know
	partial    int           // of those, tokens of prompts in prefill that the gauge holds already
	freed      int           // tokens in the last sample's gauge whose blocks are free by now
	emptied    time.Duration // when live last became 0
	prefilled  int           // prompt tokens of those whose first token came since the last sample
}

// find returns the live slot that s names, or nil.
func (l *ledger) find(s Slot) *slot {
	i := uint32(s) - 1
	if s == 0 || uint64(i) >= uint64(len(l.slots)) {
		return nil
	}
	if e := &l.slots[i]; e.used && !e.released && e.gen == uint32(s>>32) {
		return e
	}
	return nil
}

func (l *ledger) take() (uint32, *slot) {
	if n := len(l.free); n > 0 {
		i := l.free[n-1]
		l.free = l.free[:n-1]
		return i, &l.slots[i]
	}
	l.slots = append(l.slots, slot{})
	if cap(l.free) < cap(l.slots) { // so that only this function allocates
		l.free = make([]uint32, 0, cap(l.slots))
	}
	return uint32(len(l.slots) - 1), &l.slots[len(l.slots)-1]
}

func (l *ledger) drop(i int) {
	l.slots[i] = slot{gen: l.slots[i].gen + 1}
	l.free = append(l.free, uint32(i))
}

// unpend takes a slot out of the sums of what has no first token.
func (l *ledger) unpend(e *slot) {
	l.pendTokens -= e.prompt
	l.pendSeqs -= e.seqs
}

// clamp bounds n.
func clamp(n, low, high int) int { return max(low, min(n, high)) }

// Reserve puts a request that is about to start into the ledger. Call it at once
// after a verdict Start, and Release when it is over, also when it never reached
// the engine.
func (s *State) Reserve(now time.Time, r *Request) Slot {
	t := s.since(now)
	if s.live == 0 && !s.busy() {
		s.moved = max(s.moved, t) // work begins: the stuck timer starts here
	}
	if s.probing {
		s.probing = false
		s.probeAt = t + s.probeEvery
		s.probeEvery = min(2*s.probeEvery, probeMax)
	}
	i, e := s.take()
	*e = slot{
		gen: e.gen, used: true, stream: r.Stream, cold: !s.speed.Warm(), begin: t,
		estimated: clamp(r.PromptTokens, 0, maxTokens), prompt: s.prompt(r), seqs: r.seqs(), expected: r.expected(), limit: clamp(r.MaxTokens, 0, maxTokens), class: r.Class, model: r.Model,
	}
	s.waits += startsGain * (s.wait(t, r).Seconds() - s.waits)
	s.live++
	s.liveTokens += e.prompt
	s.pendTokens += e.prompt
	s.pendSeqs += e.seqs
	s.liveSeqs += e.seqs
	s.credit += e.prompt
	e.ahead = s.pendTokens
	if !e.stream && s.speed.Known() {
		e.guess = t + s.speed.Predict(e.ahead)
	}
	s.flow.roll(t, s.closed)
	e.plan = s.plan(e)
	s.peak.Add(&e.plan)
	s.prompts += startsGain * (float64(e.prompt) - s.prompts)
	s.works += startsGain * (float64(e.prompt+e.expected) - s.works)
	s.flow.started(e.estimated + e.expected) // as the door counts what waits
	h := s.head(t, r)
	e.bill = s.queue.Enter(t, &h)
	return Slot(uint64(e.gen)<<32 | uint64(i+1))
}

// Progress tells what the engine has said about a running request so far: prompt
// tokens (0 = it did not say) and output tokens over all sequences. The first
// call with output, or with prompt tokens where no output is expected, is its
// first token. A slot that was released is ignored.
func (s *State) Progress(now time.Time, id Slot, prompt, output int) {
	e := s.find(id)
	if e == nil {
		return
	}
	t := s.since(now)
	if prompt > 0 {
		s.correct(e, clamp(prompt, 0, maxTokens))
	}
	if output = clamp(output, 0, maxTokens); output > e.out {
		s.grow(e, output)
		s.lives(e)
	}
	answered := output > 0 || (prompt > 0 && e.expected == 0)
	if answered {
		s.moved = max(s.moved, t)
		s.probeEvery, s.probeAt = probeFirst, 0
	}
	if answered && !e.taught {
		e.taught = true
		s.learn(t, e)
	}
	if answered && !e.begun {
		e.begun, e.first = true, t
		s.prefilled += e.prompt
		s.unpend(e)
	}
}

// correct replaces an estimated prompt. The gauge held the true one all along.
func (s *State) correct(e *slot, prompt int) {
	if e.estimated > 0 {
		s.estimates.Learn(e.estimated, prompt)
		e.estimated = 0
	}
	d := prompt - e.prompt
	e.prompt = prompt
	s.liveTokens += d
	if !e.begun {
		s.pendTokens += d
	}
	if e.shown > 0 {
		e.shown += d
	} else {
		s.credit += d
	}
	s.queue.Grow(&e.bill, e.prompt, e.out, e.expected)
}

func (s *State) grow(e *slot, out int) {
	d := out - e.out
	e.out = out
	s.liveTokens += d
	s.credit += d
	s.queue.Grow(&e.bill, e.prompt, e.out, e.expected)
}

// learn takes a first token, or the end of a plain answer less its decode time.
func (s *State) learn(t time.Duration, e *slot) {
	s.speed.First()
	took := t - e.begin
	if !e.stream && e.out > 0 {
		if s.step == 0 {
			return // prefill and decode cannot be told apart
		}
		took = max(took-time.Duration(e.out/e.seqs)*s.step, 0)
	}
	if !e.cold {
		s.speed.Learn(e.ahead, took)
	}
}

// Release takes a request out of the ledger. What the last sample does not show
// of it stays in the credit until a sample that was asked for later: the engine
// frees an aborted request only at the end of its step.
func (s *State) Release(now time.Time, id Slot) { s.leave(s.since(now), id, false) }

// Finish is Release for an answer that came to its end. vLLM frees a finished
// request's blocks before it sends the last token, so they count as free at once,
// although the last sample still shows them.
func (s *State) Finish(now time.Time, id Slot) { s.leave(s.since(now), id, true) }

func (s *State) leave(t time.Duration, id Slot, freed bool) {
	e := s.find(id)
	if e == nil {
		return
	}
	s.exit(t, e)
	s.live--
	s.liveSeqs -= e.seqs
	s.liveTokens -= e.held()
	if !e.begun {
		s.unpend(e)
	}
	s.peak.Remove(&e.plan)
	if freed {
		s.lengths.Learn(e.class, e.model, e.passed, forecast.Step(e.out/e.seqs), e.seqs, e.limit == 0 || e.out/e.seqs < e.limit)
	}
	if s.live == 0 {
		s.emptied = t
	}
	if freed {
		s.credit -= e.held() - e.shown
		s.freed += e.shown
	} else if e.held() == e.shown {
		s.drop(int(uint32(id) - 1))
		return
	}
	if e.released, e.freed, e.end = true, freed, t; !freed { // it holds what it holds until the end of a step
		e.plan = s.plan(e)
		s.peak.Add(&e.plan)
	}
}

// exit settles the books: a prompt that has no first token counts as far as it can be
// computed by now.
func (s *State) exit(t time.Duration, e *slot) {
	prompt := e.prompt
	if rate := s.speed.Rate(); !e.begun && rate > 0 {
		prompt = min(prompt, int(rate*(t-e.begin).Seconds()))
	}
	s.queue.Exit(&e.bill, prompt, e.out)
}

// settle brings the ledger up to a sample that shows what happened until seen:
// plain answers advance, what shows leaves the credit.
func (s *State) settle(now, seen time.Duration) {
	credit, ours, prompts, seqs, unseen, freed := 0, 0, 0, 0, 0, 0
	for i := range s.slots {
		e := &s.slots[i]
		if !e.used {
			continue
		}
		if e.released && e.end <= seen {
			s.drop(i)
			continue
		}
		if !e.released && !e.stream {
			s.advance(e, now)
		}
		if e.shown = 0; e.begun && e.first <= seen {
			e.shown = e.held()
		}
		if e.freed {
			freed += e.shown
		} else {
			credit += e.held() - e.shown
		}
		if ours += e.shown; e.shown > 0 {
			ours += e.seqs * halfBlock
			prompts += min(e.prompt, e.shown)
		} else if !e.freed {
			unseen += e.prompt
		}
		seqs += e.seqs
	}
	s.credit, s.partial, s.freed = credit, 0, freed
	s.foreign = max(s.sample.Running+s.sample.Waiting-seqs, 0)
	if s.foreign == 0 {
		// Nobody else is there: what the gauge holds beyond what shows is the part of
		// our pending prompts that is computed already.
		s.partial = clamp(int(s.sample.KV*float64(s.sample.KVTokens))-ours, 0, unseen)
	}
	s.gauge.Learn(s.sample.KV*float64(s.sample.KVTokens), ours, prompts, s.partial, s.sample.KVTokens)
	s.replan()
}

// advance moves a plain answer, which shows no progress, by step time.
func (s *State) advance(e *slot, now time.Duration) {
	if !e.begun && e.guess > 0 && now >= e.guess {
		e.begun, e.first = true, e.guess
		s.unpend(e)
	}
	if e.begun && s.step > 0 {
		out := min(int((now-e.first)/s.step)*e.seqs, e.expected)
		s.grow(e, max(out, e.out))
	}
}
