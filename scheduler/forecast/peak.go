package forecast

import "math"

// horizons are the moments that Peak looks at, in tokens that every sequence makes from
// now: as far apart as the steps of a table.
var horizons = func() (all [44]int) {
	for k := range all[1:] {
		all[k+1] = begins(k + 4)
	}
	return all
}()

// gaps are how far each is from the next.
var gaps = func() (all [len(horizons)]int) {
	for k := range all[1:] {
		all[k] = horizons[k+1] - horizons[k]
	}
	all[len(all)-1] = begins(len(all)+3) - horizons[len(all)-1]
	return all
}()

const (
	deviations = 1.25 // added to the mean of what is held
	leastReach = 1e-4 // fewer are nobody
)

// Plan is a request that runs or may start.
type Plan struct {
	Sequences int    // 0 = nobody
	Held      int    // KV tokens, of all of them
	Out       int    // tokens each has made
	Most      int    // tokens each can make; Out where no more will come
	Table     *Table // how long they become; nil = until Most
}

// future is what a plan holds at the horizons before until, in the mean and its variance.
// A sequence is taken to grow until half of the way to the next horizon, or to its end
// where that is certain.
type future struct {
	held, variance [len(horizons)]float64
	until          int
}

// work fills in p's. Every decision does it once, and every sample for all that runs.
func (f *future) work(p *Plan) {
	f.until = 0
	if p.Sequences == 0 {
		return
	}
	if p.Table == nil {
		f.certain(p)
		return
	}
	seqs, t := float64(p.Sequences), p.Table
	k := Step(p.Out)
	now := max(t.within(k, p.Out), 1e-12)
	for j := range horizons {
		tokens := horizons[j]
		left := p.Most - p.Out - tokens
		if left < 0 {
			return
		}
		for k < steps-1 && p.Out+tokens >= bounds[k+1].begin {
			k++
		}
		reach := t.within(k, p.Out+tokens) / now
		if reach < leastReach {
			return
		}
		if reach > 1 {
			reach = 1
		}
		all := float64(p.Held + p.Sequences*(tokens+min(left, gaps[j])/2))
		spread := all * all
		if p.Sequences > 1 {
			spread /= seqs
		}
		f.held[j], f.variance[j] = all*reach, spread*reach*(1-reach)
		f.until = j + 1
	}
}

// certain is work for a plan that goes on until Most.
func (f *future) certain(p *Plan) {
	for j, tokens := range horizons {
		left := p.Most - p.Out - tokens
		if left < 0 {
			return
		}
		if j < len(horizons)-1 {
			left = min(left, gaps[j])
		}
		f.held[j], f.variance[j] = float64(p.Held+p.Sequences*(tokens+left)), 0
		f.until = j + 1
	}
}

// Peak is the KV tokens that plans hold at each of the horizons. Every sequence makes one
// token a step and then, with the probability its table says, ends; whether one does says
// nothing about another. This is LightLLM's peak of a batch's future (arXiv 2507.10150)
// with probabilities in the place of one length for each.
type Peak struct {
	held, variance [len(horizons)]float64
	next           future // of the plan at hand
}

// Reset takes out all plans.
func (f *Peak) Reset() { f.held, f.variance = [len(horizons)]float64{}, [len(horizons)]float64{} }

// Add puts a plan in.
func (f *Peak) Add(p *Plan) {
	x := &f.next
	x.work(p)
	for j := range x.until {
		f.held[j] += x.held[j]
		f.variance[j] += x.variance[j]
	}
}

// Remove takes a plan out as it was put in. What its table has learned since stays in,
// until Peak is made anew.
func (f *Peak) Remove(p *Plan) {
	x := &f.next
	x.work(p)
	for j := range x.until {
		f.held[j] = max(f.held[j]-x.held[j], 0)
		f.variance[j] = max(f.variance[j]-x.variance[j], 0)
	}
}

// With is the most KV tokens that all plans and x are likely to hold at one time.
func (f *Peak) With(x *Plan) int {
	more := &f.next
	more.work(x)
	most := 0.0
	for j := range horizons {
		held, variance := f.held[j], f.variance[j]
		if j < more.until {
			held, variance = held+more.held[j], variance+more.variance[j]
		}
		most = max(most, held+deviations*math.Sqrt(variance))
	}
	return int(most)
}
