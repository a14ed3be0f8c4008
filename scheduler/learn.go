package scheduler

import (
	"math"
	"time"
)

const (
	gain      = 0.05 // of what is learned from one first token
	slowGain  = 0.01 // at which short prompts make a long one forgotten
	coldFirst = 3    // first tokens until the engine's speed counts as known
)

// average is a mean and a mean deviation, in seconds, by exponential weights.
type average struct {
	mean, dev float64
	n         int
}

func (a *average) add(x float64) {
	if a.n++; a.n == 1 {
		a.mean, a.dev = x, math.Abs(x)/2
		return
	}
	err := x - a.mean
	a.mean += gain * err
	a.dev += gain * (math.Abs(err) - a.dev)
}

// speed predicts the time to a first token from the prompt tokens pending.
//
// One first token gives one pair: tokens pending when it started, its own
// included, and the time it took. The seconds per token are the least-squares
// slope through the origin over those pairs, so that a long prompt, which
// measures prefill, outweighs many short ones, which measure a step. It is the
// same quantity the prediction multiplies, so chunks and batches need no model.
type speed struct {
	xx, xy float64 // token^2, token x seconds, decaying
	firsts int     // first tokens since the engine's process started
	taught int     // of those, how many were learned from
	err    average // actual minus tokens / rate
	ttft   average // actual
}

func (v *speed) known() bool { return v.taught >= coldFirst }

// restart forgets that the process is warm; its speed is still the best guess.
func (v *speed) restart() { v.firsts, v.taught = 0, 0 }

func (v *speed) learn(tokens int, took time.Duration) {
	x, y := float64(max(tokens, 1)), took.Seconds()
	if v.known() { // one hiccup must not close the line for the next hundred requests
		y = min(y, 3*v.predict(tokens).Seconds()+0.25)
	}
	v.taught++
	forget := 0.0
	if v.xx > 0 {
		forget = min(gain, max(slowGain, x*x/v.xx))
	}
	v.xx += x*x - forget*v.xx
	v.xy += x*y - forget*v.xy
	v.err.add(y - x*v.perToken())
	v.ttft.add(y)
}

// perToken is seconds of prefill per prompt token; 0 = not known.
func (v *speed) perToken() float64 {
	if v.xx == 0 {
		return 0
	}
	return v.xy / v.xx
}

// rate is prompt tokens per second; 0 = not known.
func (v *speed) rate() float64 {
	if v.xy == 0 {
		return 0
	}
	return v.xx / v.xy
}

// prefill is how long tokens take, without the error terms.
func (v *speed) prefill(tokens int) time.Duration {
	return seconds(float64(tokens) * v.perToken())
}

// predict is the time to a first token behind tokens: prefill + e + 2 d.
func (v *speed) predict(tokens int) time.Duration {
	return seconds(max(float64(tokens)*v.perToken()+v.err.mean+2*v.err.dev, 0))
}

// seconds converts, bounded to an hour so that no sum overflows.
func seconds(s float64) time.Duration {
	return time.Duration(min(s, 3600) * float64(time.Second))
}

const (
	flowWindow = 250 * time.Millisecond
	flowCycle  = 10 * time.Second // a window that began when the gate closed lasts until it closes again, at most this
	flowGap    = time.Second      // what was not looked at for longer is not counted
	flowMemory = 20 * time.Second // time constant of the drain rate: at 8 starts/s about 320 starts
	flowRecent = 2 * time.Second  // time constant of the start rate that pauses go by
	flowKnown  = 1.0              // seconds of limited time until the rate counts as known
)

// flow measures how fast work is taken while work waits: only windows in which a
// head was told "not now" for capacity, and that follow such a window, count. So
// the burst that fills an idle engine is not taken for its lasting speed. Where
// the gate closes at KVStop and opens at KVReopen in turn, a window is one whole
// turn: seconds without a start and seconds with many, apart, mean nothing.
type flow struct {
	begin, looked   time.Duration
	tokens, starts  float64 // in this window
	limited, before bool    // this window, the one before
	closed, cycle   bool    // the gate; this window began when it closed

	sumTokens, sumTime    float64 // decaying slowly
	sumStarts, recentTime float64 // decaying fast
}

// roll closes the window when it is long enough. Call it often, with the gate's
// latch.
func (f *flow) roll(t time.Duration, closed bool) {
	edge, gap, d := closed && !f.closed, t-f.looked > flowGap, t-f.begin
	f.closed, f.looked = closed, t
	if d < flowWindow || (f.cycle && !edge && !gap && d < flowCycle) {
		f.cycle = f.cycle || edge
		return
	}
	if f.limited && f.before && !gap {
		keep := math.Exp(-d.Seconds() / flowMemory.Seconds())
		f.sumTokens = f.sumTokens*keep + f.tokens
		f.sumTime = f.sumTime*keep + d.Seconds()
		keep = math.Exp(-d.Seconds() / flowRecent.Seconds())
		f.sumStarts = f.sumStarts*keep + f.starts
		f.recentTime = f.recentTime*keep + d.Seconds()
	}
	f.begin, f.tokens, f.starts, f.cycle = t, 0, 0, edge
	f.before, f.limited = f.limited, false
}

func (f *flow) started(tokens int) {
	f.tokens += float64(tokens)
	f.starts++
}

// drain is expected tokens started per second while work waits; 0 = not known.
func (f *flow) drain() float64 {
	if f.sumTime < flowKnown {
		return 0
	}
	return f.sumTokens / f.sumTime
}

// recent is requests started per second while work waits, over the last seconds
// of such time; the fastest that pauses use until it is known.
func (f *flow) recent() float64 {
	if f.recentTime == 0 {
		return maxStarts
	}
	return f.sumStarts / f.recentTime
}
