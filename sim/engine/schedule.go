package engine

import (
	"slices"
	"time"
)

// schedule chooses the tokens of one step in vLLM's order: the running sequences
// by age, whose decodes come before any unfinished prefill, then the waiting ones.
func (e *Engine) schedule() time.Duration {
	budget := e.cfg.MaxBatchedTokens
	prefill, context, decodes, preempted := 0, 0, 0, false // context: tokens before those of prefill
	take := func(s *sequence) {
		s.scheduled = min(s.pending(), budget)
		budget -= s.scheduled
		e.held += s.scheduled
		e.stats.TokensComputed += uint64(s.scheduled)
		e.name(s)
		if s.out > 0 && s.pending() == 1 {
			decodes++
		} else {
			prefill += s.scheduled
			context += s.scheduled * (2*s.computed + s.scheduled) / 2
		}
	}
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		fits := e.grow(s, s.computed+min(s.pending(), budget))
		for !fits && s.running {
			e.preempt()
			preempted = true
			fits = s.running && e.grow(s, s.computed+min(s.pending(), budget))
		}
		if !fits {
			break
		}
		take(s)
	}
	for !preempted && len(e.waiting) > 0 && budget > 0 && len(e.running) < e.cfg.MaxSeqs {
		s := e.waiting[0]
		if !e.admit(s, budget) {
			break
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		take(s)
	}
	if prefill+decodes == 0 {
		return 0
	}
	return e.cfg.Base +
		time.Duration(prefill)*e.cfg.PerPrefillToken +
		time.Duration(context)*e.cfg.PerPrefillContext/1000 +
		time.Duration(decodes)*e.cfg.PerSeq +
		time.Duration(e.held)*e.cfg.PerKVToken
}

// admit moves a waiting sequence to running if the tokens of its first chunk, or
// its whole prompt under the gate, leave the watermark free. One that would run
// alone has no watermark: else a long one would wait for ever.
func (e *Engine) admit(s *sequence, budget int) bool {
	parts, held := e.find(s)
	cached := parts * e.cfg.PrefixTokens
	chunk := cached + min(s.pending()-cached, budget)
	must := chunk
	if e.cfg.FullPromptGate {
		must = s.pending()
	}
	need := e.blocksFor(must) - held*e.pool.unit
	if len(e.running) > 0 {
		need += e.watermark
	}
	if need > e.pool.free {
		return false
	}
	e.reuse(s, parts)
	e.grow(s, chunk)
	s.running = true
	e.running = append(e.running, s)
	return true
}

// preempt throws out the youngest running sequence: its blocks are free, all it
// computed is lost, and it waits at the head. It can't have been scheduled yet in
// this step, because sequences are scheduled by age.
func (e *Engine) preempt() {
	last := len(e.running) - 1
	s := e.running[last]
	e.running[last] = nil
	e.running = e.running[:last]
	e.stats.TokensRecomputed += uint64(s.computed)
	e.release(s)
	s.preempted++
	e.waiting = slices.Insert(e.waiting, 0, s)
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize
}

// grow gives a sequence the blocks for so many tokens, or reports that they're not there.
func (e *Engine) grow(s *sequence, tokens int) bool {
	need := max(0, e.blocksFor(tokens)-s.blocks)
	if need > e.pool.free {
		return false
	}
	e.pool.take(need)
	s.blocks += need
	return true
}

// release takes a sequence's blocks back, the last one first: a prompt's start is
// found by more and stays longest.
func (e *Engine) release(s *sequence) {
	e.pool.put(s.blocks-len(s.parts)*e.pool.unit, nil)
	for _, t := range slices.Backward(s.parts) {
		e.pool.release(t)
	}
	clear(s.parts)
	e.held -= s.computed + s.scheduled
	s.parts, s.named, s.blocks, s.computed, s.scheduled, s.running = s.parts[:0], 0, 0, 0, 0, false
}

// applyAborts removes every sequence whose abort has been asked for. A token that
// was being computed for it is lost, and so are its uncounted preemptions.
func (e *Engine) applyAborts() {
	if len(e.aborts) == 0 {
		return
	}
	for i, s := range e.aborts {
		e.aborts[i] = nil
		if e.seqs[s.ID] != s {
			continue // finished before its abort came to act
		}
		e.stats.Aborted++
		e.stats.TokensAborted += uint64(s.computed + s.scheduled)
		e.release(s)
		e.forget(s)
		e.events = append(e.events, Event{ID: s.ID, Kind: Aborted, Output: s.out})
	}
	e.aborts = e.aborts[:0]
	gone := func(s *sequence) bool { return s.aborted }
	e.incoming = slices.DeleteFunc(e.incoming, gone)
	e.waiting = slices.DeleteFunc(e.waiting, gone)
	e.running = slices.DeleteFunc(e.running, gone)
}

func (e *Engine) forget(s *sequence) {
	if s.out == 0 {
		e.prefillTokens -= s.Prompt
	}
	delete(e.seqs, s.ID)
}

// produce turns the computed tokens into outputs and lets the finished go.
func (e *Engine) produce() {
	outputs, kept := 0, e.running[:0]
	for _, s := range e.running {
		s.computed += s.scheduled
		s.scheduled = 0
		if s.pending() > 0 { // in prefill, or not scheduled
			kept = append(kept, s)
			continue
		}
		outputs++
		e.output(s)
		if s.out < s.Output {
			e.events = append(e.events, Event{ID: s.ID, Kind: Token, Output: s.out})
			kept = append(kept, s)
			continue
		}
		e.events = append(e.events, Event{ID: s.ID, Kind: Finished, Output: s.out})
		e.stats.Finished++
		e.release(s)
		e.forget(s)
	}
	clear(e.running[len(kept):])
	e.running = kept
	if outputs > 0 {
		e.stats.Steps++
	}
}

// output counts one output of s. The prompt and the preemptions are counted here
// and not when they happen, as vLLM does.
func (e *Engine) output(s *sequence) {
	e.stats.Preemptions += uint64(s.preempted)
	s.preempted = 0
	if s.out == 0 {
		e.stats.PromptTokens += uint64(s.Prompt)
	}
	if s.Output == 0 {
		return
	}
	if s.out == 0 {
		e.prefillTokens -= s.Prompt
	}
	s.out++
	e.stats.GenerationTokens++
}
