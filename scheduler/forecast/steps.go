package forecast

import "math"

// Steps predicts how long a step takes, by least squares over samples with
// forgetting: step = a + b x prefill tokens + c x sequences + d x KV tokens. It is four
// unknowns, solved in place: a library would allocate for each sample.
type Steps struct {
	xx [features][features]float64
	xy [features]float64
	w  [features]float64 // solved
	n  int

	prefill float64 // tokens per step, lately
	alone   float64 // seconds of one sequence's steps without any; 0 = not seen
}

const (
	features = 4
	forget   = 0.01 // about the last 100 polls with steps
	known    = 20

	aloneGain = 0.1
	ridge     = 1e-3
)

// Features are scaled to about 1, so that one ridge serves all.
const (
	perPrefill = 1.0 / 512
	perSeqs    = 1.0 / 64
)

// Learn takes in the steps between two samples: prompt tokens each, sequences that ran,
// share of KV tokens in use and seconds each took.
func (m *Steps) Learn(prefill, seqs, kv, took float64) {
	x := [features]float64{1, prefill * perPrefill, seqs * perSeqs, kv}
	for i := range x {
		for j := range x {
			m.xx[i][j] += x[i]*x[j] - forget*m.xx[i][j]
		}
		m.xy[i] += x[i]*took - forget*m.xy[i]
	}
	if seqs == 1 && prefill == 0 {
		if m.alone == 0 {
			m.alone = took
		}
		m.alone += aloneGain * (took - m.alone)
	}
	m.n++
	m.prefill += forget * 5 * (prefill - m.prefill)
	m.solve()
}

// Known reports whether enough was seen to predict.
func (m *Steps) Known() bool { return m.n >= known }

// solve is Gaussian elimination on the ridged normal equations. A factor that comes
// out negative is noise and counts as none.
func (m *Steps) solve() {
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

// Predict is the seconds of a step with as many prompt tokens as of late, so many
// sequences and that share of KV tokens in use.
func (m *Steps) Predict(seqs, kv float64) float64 { return m.predict(m.prefill, seqs, kv) }

// Alone is the seconds of a step of one sequence with nothing to prefill, as seen; 0 = not
// seen. Extrapolated from full batches it can be far off.
func (m *Steps) Alone() float64 { return m.alone }

func (m *Steps) predict(prefill, seqs, kv float64) float64 {
	return m.w[0] + m.w[1]*prefill*perPrefill + m.w[2]*seqs*perSeqs + m.w[3]*kv
}
