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

const (
	deviations = 1    // added to the mean of what is held
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

// at calls f for each horizon with what p holds there, in the mean and its variance. A
// sequence is taken to grow until half of the way to the next horizon, or to its end
// where that is certain.
func (p *Plan) at(f func(j int, held, variance float64)) {
	now := 1.0
	if p.Table != nil {
		now = max(p.Table.Reach(p.Out), 1e-12)
	}
	for j, tokens := range horizons {
		left := p.Most - p.Out - tokens
		if left < 0 {
			return
		}
		grows, reach := left, 1.0
		if j+1 < len(horizons) {
			grows = min(left, horizons[j+1]-tokens)
		}
		if p.Table != nil {
			grows /= 2
			if reach = min(p.Table.Reach(p.Out+tokens)/now, 1); reach < leastReach {
				return
			}
		}
		all := float64(p.Held + p.Sequences*(tokens+grows))
		f(j, all*reach, all*all/float64(p.Sequences)*reach*(1-reach))
	}
}

// Peak is the KV tokens that plans hold at each of the horizons. Every sequence makes one
// token a step and then, with the probability its table says, ends; whether one does says
// nothing about another. This is LightLLM's peak of a batch's future (arXiv 2507.10150)
// with probabilities in the place of one length for each.
type Peak struct {
	held, variance [len(horizons)]float64
}

// Add puts a plan in.
func (f *Peak) Add(p *Plan) { f.add(p, 1) }

// Remove takes a plan out as it was put in. What its table has learned since stays in,
// until Peak is made anew.
func (f *Peak) Remove(p *Plan) { f.add(p, -1) }

func (f *Peak) add(p *Plan, sign float64) {
	if p.Sequences == 0 {
		return
	}
	p.at(func(j int, held, variance float64) {
		f.held[j] = max(f.held[j]+sign*held, 0)
		f.variance[j] = max(f.variance[j]+sign*variance, 0)
	})
}

// With is the most KV tokens that all plans and x are likely to hold at one time.
func (f *Peak) With(x *Plan) int {
	all := *f
	all.Add(x)
	most := 0.0
	for j := range horizons {
		most = max(most, all.held[j]+deviations*math.Sqrt(all.variance[j]))
	}
	return int(most)
}
