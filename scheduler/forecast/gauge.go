package forecast

const (
	shareGain   = 0.2  // of what one sample says about prefix sharing and bias: about the last five polls
	shareLeast  = 0.3  // below it the ledger is wrong rather than the prefixes shared
	shareTokens = 0.02 // of K: with less past its first token a sample says nothing about sharing

	marginUp    = 0.02  // more is kept free after each poll that counted a preemption
	marginDecay = 0.002 // of K per second without
	marginMost  = 0.30
)

// Gauge is by what the engine's gauge differs from the ledger.
type Gauge struct {
	Sharing float64 // KV tokens per token of a prompt: below 1 where prefixes are shared
	Bias    float64 // KV tokens that are nobody's in the ledger
	Caution float64 // share of K kept free on top, because requests were preempted
}

// NewGauge makes one that trusts the ledger.
func NewGauge() Gauge { return Gauge{Sharing: 1} }

// Learn takes in a gauge in tokens, of k, that shows ours of the ledger's, prompts of them
// prompts, and parts of pending prompts.
func (g *Gauge) Learn(gauge float64, ours, prompts, parts, k int) {
	if k == 0 {
		return
	}
	held, out := gauge-float64(parts), float64(ours-prompts)
	if float64(ours) > shareTokens*float64(k) && prompts > 0 {
		shared := (held - out) / float64(prompts)
		g.Sharing += shareGain * (min(max(shared, shareLeast), 1) - g.Sharing)
	}
	g.Bias += shareGain * (max(held-out-g.Sharing*float64(prompts), 0) - g.Bias)
}

// Preempted takes in whether requests were preempted in the seconds since the last sample.
func (g *Gauge) Preempted(any bool, seconds float64) {
	if any {
		g.Caution = min(g.Caution+marginUp, marginMost)
		return
	}
	g.Caution = max(g.Caution-marginDecay*seconds, 0)
}
