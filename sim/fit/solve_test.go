package fit

import (
	"math"
	"math/rand/v2"
	"testing"
)

// truth is an 8B model on an A100: 10 ms a step, 66 us per prompt token and 4 us per
// thousand before it, 40 us per sequence, 94 ns per KV token.
var truth = Coefficients{10e-3, 66e-6, 4e-9, 40e-6, 94e-9}

// measured are rows as a sweep makes them, off by noise (a standard deviation); every
// nth is a pause of the machine.
func measured(noise float64, nth int) (rows []Row) {
	random := rand.New(rand.NewPCG(7, 7))
	for _, prompt := range []float64{64, 256, 1024, 4096, 8192} {
		for _, batch := range []float64{1, 4, 16, 64} {
			rows = append(rows, Row{Steps: 1, Decodes: batch, KV: batch * (prompt + 24)})
		}
		steps := 2 + math.Ceil(prompt/2048)
		for _, batch := range []float64{1, 4} {
			rows = append(rows, Row{Steps: steps, Prefill: prompt, Context: prompt * prompt / 2, Decodes: batch * steps, KV: steps * (batch*56 + prompt/2)})
		}
	}
	random.Shuffle(len(rows), func(i, k int) { rows[i], rows[k] = rows[k], rows[i] })
	for i := range rows {
		rows[i].Took = truth.Predict(&rows[i]) * (1 + noise*random.NormFloat64())
		if nth > 0 && i%nth == 0 {
			rows[i].Took *= 4
		}
	}
	return rows
}

func TestSolve(t *testing.T) {
	for _, c := range []struct {
		name  string
		noise float64
		nth   int
		most  float64 // relative error of the coefficients
	}{
		{"exact", 0, 0, 1e-6},
		{"noise of 1 %", 0.01, 0, 0.10},
		{"a pause in every eighth", 0.01, 8, 0.10},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Solve(measured(c.noise, c.nth))
			for k := range truth {
				if off := math.Abs(got[k]/truth[k] - 1); off > c.most {
					t.Errorf("coefficient %d: got %g, want %g; off by %.1f %%", k, got[k], truth[k], 100*off)
				}
			}
		})
	}
}

func TestSolveWithoutAnswer(t *testing.T) {
	if got := Solve(nil); got != (Coefficients{}) {
		t.Errorf("no rows: got %v, want zeros", got)
	}
	// More sequences were faster: no coefficient may be negative for it.
	got := Solve([]Row{{1, 0, 0, 1, 100, 0.02}, {1, 0, 0, 8, 800, 0.018}, {1, 0, 0, 32, 3200, 0.016}})
	for k, x := range got {
		if x < 0 || math.IsNaN(x) {
			t.Errorf("coefficient %d: got %g, want 0 or more", k, x)
		}
	}
	if math.Abs(got[0]-0.018) > 0.001 {
		t.Errorf("a step: got %g, want the mean of 0.018", got[0])
	}
}

func TestHeldOut(t *testing.T) {
	if worst := quantile(HeldOut(measured(0, 0)), 1); worst > 1e-6 {
		t.Errorf("exact rows: worst error %g, want 0", worst)
	}
	off := HeldOut(measured(0.02, 8))
	if p50, most := quantile(off, 0.5), quantile(off, 1); p50 > 0.03 || most < 0.5 {
		t.Errorf("noise of 2 %% and pauses: median error %.3f, worst %.3f; want at most 0.03, and the pauses told", p50, most)
	}
}

func TestMiddle(t *testing.T) {
	if got := middle([]float64{9, 1, 1, 1, 1, 1, 1, 1, 1, 0}); got != 1 {
		t.Errorf("got %g, want 1", got)
	}
	if got := middle(nil); got != 0 {
		t.Errorf("of nothing: got %g, want 0", got)
	}
}
