package forecast

import (
	"math"
	"time"
)

const (
	gain     = 0.05 // of what is learned from one first token
	slowGain = 0.01 // at which short prompts make a long one forgotten
)

// Firsts is how many first tokens must have taught until an engine's speed is known.
const Firsts = 3

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

// Speed predicts the time to a first token from the prompt tokens pending.
//
// One first token gives one pair: tokens pending when it started, its own
// included, and the time it took. The seconds per token are the least-squares
// slope through the origin over those pairs, so that a long prompt, which
// measures prefill, outweighs many short ones, which measure a step. It is the
// same quantity the prediction multiplies, so chunks and batches need no model.
type Speed struct {
	xx, xy float64 // token^2, token x seconds, decaying
	warm   bool    // there was a first token since the engine's process started
	taught int     // first tokens learned from since then
	err    average // actual minus tokens / rate
	ttft   average // actual
}

// Known reports whether enough first tokens have taught to predict.
func (v *Speed) Known() bool { return v.taught >= Firsts }

// Restart forgets that the process is warm; its speed is still the best guess.
func (v *Speed) Restart() { v.warm, v.taught = false, 0 }

// First notes that the process has had a first token.
func (v *Speed) First() { v.warm = true }

// Warm reports whether it has.
func (v *Speed) Warm() bool { return v.warm }

// Mean is the time to a first token, lately; 0 = not known.
func (v *Speed) Mean() time.Duration { return Seconds(max(v.ttft.mean, 0)) }

// Learn takes in how long a first token took behind so many prompt tokens.
func (v *Speed) Learn(tokens int, took time.Duration) {
	x, y := float64(max(tokens, 1)), took.Seconds()
	if v.Known() { // one hiccup must not close the line for the next hundred requests
		y = min(y, 3*v.Predict(tokens).Seconds()+0.25)
	}
	v.taught++
	lose := 0.0
	if v.xx > 0 {
		lose = min(gain, max(slowGain, x*x/v.xx))
	}
	v.xx += x*x - lose*v.xx
	v.xy += x*y - lose*v.xy
	v.err.add(y - x*v.PerToken())
	v.ttft.add(y)
}

// PerToken is seconds of prefill per prompt token; 0 = not known.
func (v *Speed) PerToken() float64 {
	if v.xx == 0 {
		return 0
	}
	return v.xy / v.xx
}

// Rate is prompt tokens per second; 0 = not known.
func (v *Speed) Rate() float64 {
	if v.xy == 0 {
		return 0
	}
	return v.xx / v.xy
}

// Prefill is how long tokens take, without the error terms.
func (v *Speed) Prefill(tokens int) time.Duration {
	return Seconds(float64(tokens) * v.PerToken())
}

// Predict is the time to a first token behind tokens: prefill + e + 2 d.
func (v *Speed) Predict(tokens int) time.Duration {
	return Seconds(max(float64(tokens)*v.PerToken()+v.err.mean+2*v.err.dev, 0))
}

// Seconds converts, bounded to an hour so that no sum overflows.
func Seconds(s float64) time.Duration {
	return time.Duration(min(s, 3600) * float64(time.Second))
}
