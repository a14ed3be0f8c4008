package scheduler

import (
	"math"
	"time"
)

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
