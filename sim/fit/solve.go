package fit

import (
	"cmp"
	"math"
	"slices"
)

// Row is one measurement: steps of the engine that took Took seconds together, and
// the sums over them of what a step's time depends on.
type Row struct {
	Steps   float64 `json:"steps"`
	Prefill float64 `json:"prefill_tokens"` // prompt tokens computed
	Context float64 `json:"context_tokens"` // before each of those in its sequence
	Decodes float64 `json:"decodes"`        // sequences that decoded
	KV      float64 `json:"kv_tokens"`      // tokens held in the KV cache
	Took    float64 `json:"measured_seconds"`
}

// terms is how many coefficients there are.
const terms = 5

func (r *Row) of() [terms]float64 {
	return [terms]float64{r.Steps, r.Prefill, r.Context, r.Decodes, r.KV}
}

// Coefficients are seconds per step, prompt token, token before a prompt token, decoding
// sequence and KV token.
type Coefficients [terms]float64

// Predict is how long the steps of a row take, in seconds.
func (c *Coefficients) Predict(r *Row) (sum float64) {
	for i, x := range r.of() {
		sum += c[i] * x
	}
	return sum
}

// off is the relative error of a prediction, with its sign.
func (c *Coefficients) off(r *Row) float64 { return c.Predict(r)/r.Took - 1 }

// Solve finds the coefficients, none below 0, whose predictions are off by the least
// share of what was measured. A row that the others contradict counts little (Huber's
// weights, from the rows' own spread), so that pauses of a busy machine do not bend
// the fit. Rows must have Took > 0; without rows all is 0.
func Solve(rows []Row) (c Coefficients) {
	const (
		rounds = 30    // far more than it takes to settle
		huber  = 1.345 // deviations beyond which a row loses weight: 95 % efficiency on normal errors
		spread = 0.6745
	)
	weights := make([]float64, len(rows))
	for i := range weights {
		weights[i] = 1
	}
	for range rounds {
		c = nonNegative(rows, weights)
		off := make([]float64, len(rows))
		for i := range rows {
			off[i] = math.Abs(c.off(&rows[i]))
		}
		limit := huber * max(quantile(off, 0.5)/spread, 1e-6)
		for i := range weights {
			weights[i] = min(1, limit/max(off[i], 1e-12))
		}
	}
	return c
}

// nonNegative is weighted least squares over the relative errors. With so few terms the
// best of all subsets of them is found by trying each.
func nonNegative(rows []Row, weights []float64) (best Coefficients) {
	least := math.Inf(1)
	for subset := 1; subset < 1<<terms; subset++ {
		c, ok := normal(rows, weights, subset)
		if !ok || slices.Min(c[:]) < 0 {
			continue
		}
		sum := 0.0
		for i := range rows {
			off := c.off(&rows[i])
			sum += weights[i] * off * off
		}
		if sum < least {
			least, best = sum, c
		}
	}
	return best
}

// normal solves the normal equations of the terms in subset, a set of bits; the others
// are 0. It reports false where the rows do not tell the terms apart.
func normal(rows []Row, weights []float64, subset int) (c Coefficients, ok bool) {
	var a [terms][terms + 1]float64
	var scale [terms]float64 // so that a step and a KV token are alike in size
	for i := range rows {
		for k, x := range rows[i].of() {
			scale[k] = max(scale[k], x/rows[i].Took)
		}
	}
	for i := range rows {
		x := rows[i].of()
		for k := range x {
			x[k] /= rows[i].Took * cmp.Or(scale[k], 1)
		}
		for k := range x {
			for l := range x {
				a[k][l] += weights[i] * x[k] * x[l]
			}
			a[k][terms] += weights[i] * x[k]
		}
	}
	for k := range terms {
		if subset>>k&1 == 0 {
			for l := range terms {
				a[k][l], a[l][k] = 0, 0
			}
			a[k][k], a[k][terms] = 1, 0
		}
	}
	if !eliminate(&a) {
		return c, false
	}
	for k := range c {
		c[k] = a[k][terms] / cmp.Or(scale[k], 1)
	}
	return c, true
}

// eliminate leaves the solution in the last column.
func eliminate(a *[terms][terms + 1]float64) bool {
	for k := range terms {
		pivot := k
		for l := k; l < terms; l++ {
			if math.Abs(a[l][k]) > math.Abs(a[pivot][k]) {
				pivot = l
			}
		}
		if math.Abs(a[pivot][k]) < 1e-9 {
			return false
		}
		a[k], a[pivot] = a[pivot], a[k]
		for l := range terms {
			if l == k {
				continue
			}
			times := a[l][k] / a[k][k]
			for m := k; m <= terms; m++ {
				a[l][m] -= times * a[k][m]
			}
		}
	}
	for k := range terms {
		a[k][terms] /= a[k][k]
	}
	return true
}

// folds is into how many parts the rows are divided to say how good a fit is.
const folds = 4

// HeldOut is |predicted - measured| / measured of every row, each predicted by a fit
// of the rows of the other folds: row i is in fold i modulo four, so the rows should
// come in an order that has nothing to do with their sizes.
func HeldOut(rows []Row) []float64 {
	off := make([]float64, len(rows))
	for fold := range folds {
		var seen []Row
		for i := range rows {
			if i%folds != fold {
				seen = append(seen, rows[i])
			}
		}
		c := Solve(seen)
		for i := fold; i < len(rows); i += folds {
			off[i] = math.Abs(c.off(&rows[i]))
		}
	}
	return off
}

// quantile of x, which it does not change; 0 for none.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(x))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// middle is the mean of x without its lowest and highest tenth, which pauses and
// events read together would bend; 0 for none.
func middle(x []float64) (mean float64) {
	sorted := slices.Sorted(slices.Values(x))
	cut := len(sorted) / 10
	sorted = sorted[cut : len(sorted)-cut]
	for _, v := range sorted {
		mean += v / float64(len(sorted))
	}
	return mean
}
