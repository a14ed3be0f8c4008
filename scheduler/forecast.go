package scheduler

import (
	"math"
	"time"

	"penstock/reason"
)

// The forecast: how much KV the requests that run will hold at most, if each goes on
// for as long as requests of its class that came this far did.

const (
	shareGain   = 0.2  // of what one sample says about prefix sharing and bias: about the last five polls
	shareLeast  = 0.3  // below it the ledger is wrong rather than the prefixes shared
	shareTokens = 0.02 // of K: with less past its first token a sample says nothing about sharing

	marginUp    = 0.02  // more is kept free after each poll that counted a preemption
	marginDecay = 0.002 // of K per second without
	marginMost  = 0.30
)

// plan is a request that runs, as the forecast sees it.
type plan struct {
	slot uint32
	seqs int
	held int // KV tokens of all its sequences
	left int // output tokens still to come, of each
}

// forecast is the plans of one engine and what corrects them.
type forecast struct {
	plans   []plan  // by left, descending
	sharing float64 // KV tokens per token of a prompt: below 1 where prefixes are shared
	bias    float64 // KV tokens that are nobody's here
	caution float64 // share of K kept free on top, because requests were preempted
}

// peak is the most KV tokens that the plans and x hold together at any time to come:
// when the k-th longest ends, k of them are left and each has grown by what that one
// had left (LightLLM's Past-Future scheduler, arXiv 2507.10150). x without sequences
// is nobody.
func (f *forecast) peak(x plan) int {
	held, seqs, most := 0, 0, 0
	add := func(p *plan) {
		held += p.held
		seqs += p.seqs
		most = max(most, held+seqs*p.left)
	}
	for i := range f.plans {
		if x.seqs > 0 && f.plans[i].left <= x.left {
			add(&x)
			x.seqs = 0
		}
		add(&f.plans[i])
	}
	if x.seqs > 0 {
		add(&x)
	}
	return most
}

// insert puts p in its place.
func (f *forecast) insert(p plan) {
	i := len(f.plans)
	f.plans = append(f.plans, p)
	for ; i > 0 && f.plans[i-1].left < p.left; i-- {
		f.plans[i] = f.plans[i-1]
	}
	f.plans[i] = p
}

// remove takes a slot's plan out.
func (f *forecast) remove(slot uint32) {
	for i := range f.plans {
		if f.plans[i].slot == slot {
			f.plans = append(f.plans[:i], f.plans[i+1:]...)
			return
		}
	}
}

// plan is what a running request holds and has left.
func (s *State) plan(i uint32, e *slot) plan {
	p := plan{slot: i, seqs: e.seqs, held: s.holds(e.prompt, e.out, e.seqs)}
	if !e.released {
		p.left = s.left(e)
	}
	return p
}

// holds is KV tokens: a part of the prompt may be shared, and the last block of a
// sequence is half empty.
func (s *State) holds(prompt, out, seqs int) int {
	return int(s.forecast.sharing*float64(prompt)) + out + seqs*halfBlock
}

// replan looks at all that runs anew. Between two samples everything grows by about
// as much, which leaves the peak where it is.
func (s *State) replan() {
	s.forecast.plans = s.forecast.plans[:0]
	for i := range s.slots {
		if e := &s.slots[i]; e.used && !e.freed {
			s.forecast.insert(s.plan(uint32(i), e))
		}
	}
}

// share learns from a sample in which the ledger's requests hold ours tokens, prompt
// of them prompts, and parts of pending prompts are there as well.
func (f *forecast) learn(gauge float64, ours, prompts, partial int, k int) {
	if k == 0 {
		return
	}
	others := gauge - float64(partial)
	if float64(ours) > shareTokens*float64(k) && prompts > 0 {
		shared := (others - float64(ours-prompts)) / float64(prompts)
		f.sharing += shareGain * (min(max(shared, shareLeast), 1) - f.sharing)
	}
	f.bias += shareGain * (max(others-float64(ours-prompts)-f.sharing*float64(prompts), 0) - f.bias)
}

// preempted adapts what is kept free to a sample, seconds after the one before.
func (f *forecast) preempted(any bool, seconds float64) {
	if any {
		f.caution = min(f.caution+marginUp, marginMost)
		return
	}
	f.caution = max(f.caution-marginDecay*seconds, 0)
}

// fits reports whether a peak leaves the margin free.
func (s *State) fits(peak int, extra float64) bool {
	k := float64(s.sample.KVTokens)
	margin := s.cfg.Margin + s.forecast.caution + extra
	if s.sample.Ranks > 1 {
		margin += s.cfg.Margin // which rank takes what is not known
	}
	return float64(peak)+s.forecast.bias <= (1-margin)*k
}

// left is how many output tokens a running request's sequences have still to come.
func (s *State) left(e *slot) int {
	if e.expected == 0 { // embeddings
		return 0
	}
	return s.lengths.expect(e.class, e.model, e.out/e.seqs, e.expected/e.seqs, s.longest(e.prompt/e.seqs, e.limit))
}

// longest is the most output tokens one sequence can have: as the client limits it,
// and as the model's context does.
func (s *State) longest(prompt, limit int) int {
	most := maxTokens
	if s.maxLen > 0 {
		most = max(s.maxLen-prompt, 1)
	}
	if limit > 0 {
		most = min(most, limit)
	}
	return most
}

// stepModel predicts how long a step takes, by least squares over samples with
// forgetting: step = a + b x prefill tokens + c x sequences + d x KV tokens.
type stepModel struct {
	xx [features][features]float64
	xy [features]float64
	w  [features]float64 // solved
	n  int

	prefill float64 // tokens per step, lately
}

const (
	features   = 4
	stepForget = 0.01 // about the last 100 polls with steps
	stepKnown  = 20
	ridge      = 1e-3
)

// Features are scaled to about 1, so that one ridge serves all.
const (
	perPrefill = 1.0 / 512
	perSeqs    = 1.0 / 64
)

func (m *stepModel) learn(prefill, seqs, kv, took float64) {
	x := [features]float64{1, prefill * perPrefill, seqs * perSeqs, kv}
	for i := range x {
		for j := range x {
			m.xx[i][j] += x[i]*x[j] - stepForget*m.xx[i][j]
		}
		m.xy[i] += x[i]*took - stepForget*m.xy[i]
	}
	m.n++
	m.prefill += stepForget * 5 * (prefill - m.prefill)
	m.solve()
}

func (m *stepModel) known() bool { return m.n >= stepKnown }

// solve is Gaussian elimination on the ridged normal equations. A factor that comes
// out negative is noise and counts as none.
func (m *stepModel) solve() {
	a, y := m.xx, m.xy
	for i := range features {
		a[i][i] += ridge * (1 + m.xx[0][0])
	}
	for i := range features {
		for j := i + 1; j < features; j++ {
			f := a[j][i] / a[i][i]
			for k := i; k < features; k++ {
				a[j][k] -= f * a[i][k]
			}
			y[j] -= f * y[i]
		}
	}
	for i := features - 1; i >= 0; i-- {
		v := y[i]
		for k := i + 1; k < features; k++ {
			v -= a[i][k] * m.w[k]
		}
		m.w[i] = v / a[i][i]
		if !(m.w[i] >= 0) || math.IsInf(m.w[i], 0) {
			m.w[i] = 0
		}
	}
}

// step is the predicted seconds of a step with that many prefill tokens, sequences
// and that share of KV.
func (m *stepModel) step(prefill, seqs, kv float64) float64 {
	return m.w[0] + m.w[1]*prefill*perPrefill + m.w[2]*seqs*perSeqs + m.w[3]*kv
}

const (
	tpotShare = 0.9  // of slo_tpot that a predicted step may take
	netStart  = 0.95 // the watermarks under the forecast, see marks
	netStop   = 0.99
)

// future is the forecast's part of the law: KV at its peak and the time per token,
// which is a mean: a long prefill step alone is no reason.
func (s *State) future(r *Request, extra float64) reason.Reason {
	n := r.seqs()
	x := plan{seqs: n, held: s.holds(r.prompt(), 0, n)}
	if r.ExpectedOut > 0 {
		x.left = s.lengths.expect(r.Class, r.Model, 0, clamp(r.ExpectedOut, 1, maxTokens), s.longest(r.prompt()/n, clamp(r.MaxTokens, 0, maxTokens)))
	}
	peak := s.forecast.peak(x)
	if !s.fits(peak, extra) {
		return reason.KVForecast
	}
	if !s.steps.known() || s.live == 0 {
		return reason.OK
	}
	slo := s.tpot(r).Seconds()
	running := float64(s.sample.Running + s.pendSeqs + n)
	if s.steps.step(s.steps.prefill, running, s.share(peak)) > tpotShare*slo {
		return reason.StepsSlow
	}
	return reason.OK
}

// tpot is the limit that a request must leave the engine in: its own, or that of a
// tier before its own.
func (s *State) tpot(r *Request) time.Duration {
	c, limit := &s.tiers[s.tier(r)], r.SLOTPOT
	if limit == 0 {
		limit = c.SLOTPOT
	}
	if c.tpot > 0 {
		limit = min(limit, c.tpot)
	}
	return limit
}
