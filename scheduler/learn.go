package scheduler

import (
	"math"
	"time"
)

const (
	gain      = 0.05 // of the error averages, as in TCP's retransmission timer but slower
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

// high is the mean plus two deviations, never negative.
func (a *average) high() float64 { return max(a.mean+2*a.dev, 0) }

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
	v.xx += x*x - gain*v.xx
	v.xy += x*y - gain*v.xy
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
	flowGap    = time.Second      // a longer window was not watched
	flowMemory = 15 * time.Second // time constant: at 8 starts/s about 240 starts
	flowKnown  = 1.0              // seconds of limited time until the rate counts as known
)

// flow measures how fast work is taken while work waits: only windows in which a
// head was told "not now" for capacity, and that follow such a window, count. So
// the burst that fills an idle engine is not taken for its lasting speed.
type flow struct {
	begin           time.Duration
	tokens, starts  float64 // in this window
	limited, before bool    // this window, the one before

	sumTokens, sumStarts, sumTime float64 // decaying
}

// roll closes the window when it is long enough.
func (f *flow) roll(t time.Duration) {
	d := t - f.begin
	if d < flowWindow {
		return
	}
	if f.limited && f.before && d <= flowGap {
		keep := math.Exp(-d.Seconds() / flowMemory.Seconds())
		f.sumTokens = f.sumTokens*keep + f.tokens
		f.sumStarts = f.sumStarts*keep + f.starts
		f.sumTime = f.sumTime*keep + d.Seconds()
	}
	f.begin, f.tokens, f.starts = t, 0, 0
	f.before, f.limited = f.limited, false
}

func (f *flow) started(tokens int) {
	f.tokens += float64(tokens)
	f.starts++
}

// rates are expected tokens and requests started per second while work waits; 0
// = not known.
func (f *flow) rates() (tokens, starts float64) {
	if f.sumTime < flowKnown {
		return 0, 0
	}
	return f.sumTokens / f.sumTime, f.sumStarts / f.sumTime
}
