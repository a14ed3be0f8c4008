package forecast

const (
	estimatesPrior = 2048.0     // tokens, one prefill chunk: so much counts as estimated right at the start
	estimatesKeep  = 1 - 1.0/32 // about the last 32 prompts
	estimatesNear  = 0.1        // of an estimate: so far off is what all are
	estimatesMost  = 8.0        // times too low: beyond, something else was counted
)

// Estimates is how far the estimates of prompts are too low that requests come with. A
// gateway prices bytes, and learns how many a token has from answers that ended; until
// then, and for what has waited in a lane since, the engine's count with first tokens says
// it sooner. Estimates that are too high are left to the gateway: were they lowered here,
// the moment it learns would let twice as much in. Make it with NewEstimates.
type Estimates struct {
	counted, estimated float64 // decaying sums, in tokens
}

// NewEstimates makes one that trusts them.
func NewEstimates() Estimates { return Estimates{counted: estimatesPrior, estimated: estimatesPrior} }

// Learn takes in a prompt's tokens as estimated and as the engine counted them.
func (e *Estimates) Learn(estimated, counted int) {
	e.estimated = e.estimated*estimatesKeep + float64(estimated)
	e.counted = e.counted*estimatesKeep + float64(counted)
}

// Tokens is what an estimate is expected to be counted as.
func (e *Estimates) Tokens(estimated int) int {
	return int(min(max(e.counted/e.estimated-estimatesNear, 1), estimatesMost)*float64(estimated) + 0.5)
}
