package forecast

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func TestStepsOfALength(t *testing.T) {
	for k := range steps {
		if got := Step(begins(k)); got != k {
			t.Errorf("step %d begins at %d, which is in step %d", k, begins(k), got)
		}
		if k > 0 && Step(begins(k)-1) != k-1 {
			t.Errorf("%d is in step %d, want the one before %d", begins(k)-1, Step(begins(k)-1), k)
		}
	}
	if got := Step(math.MaxInt32); got != steps-1 {
		t.Errorf("a length beyond all is in step %d, want the last", got)
	}
}

// live plays an answer of n tokens that ends by itself or is cut.
func (l *Lengths) live(class, model uint64, n int, cut bool) {
	l.Table(class, model, 100)
	l.Learn(class, model, 0, Step(n), 1, !cut)
}

func TestReachGoesByWhatCameThisFar(t *testing.T) {
	l := NewLengths()
	for range 300 { // half of a class's answers are short, half are long
		l.live(7, 9, 10, false)
		l.live(7, 9, 500, false)
		l.live(6, 9, 50, false)
	}
	two := l.Table(7, 9, 100)
	near := func(name string, got, want, by float64) {
		t.Helper()
		if math.Abs(got-want) > by {
			t.Errorf("%s: %.3f, want %.3f", name, got, want)
		}
	}
	near("past the short ones", two.Reach(100), 0.5, 0.03)
	near("of those, past nearly all", two.Reach(440)/two.Reach(100), 1, 0.05)
	near("past everything", two.Reach(700), 0, 0.03)
	if !l.Known() {
		t.Error("900 answers ended, and lengths are not known")
	}
	l.Table(8, 9, 100)
	near("a class not known goes by the model", l.Table(8, 9, 100).Reach(20), 2.0/3, 0.03)
	if l.Table(0, 0, 100) != nil {
		t.Error("who names nothing has a table")
	}
	for i := range uint64(1000) {
		l.live(100+i, 0, 5, false)
	}
	if len(l.all) != mostTables || len(l.of) != mostTables {
		t.Errorf("%d tables held, %d found; bound %d", len(l.all), len(l.of), mostTables)
	}
}

// TestWhatRunsStillCounts: a class of long answers is known for one before the first of
// them has ended.
func TestWhatRunsStillCounts(t *testing.T) {
	l := NewLengths()
	for i := range 200 {
		if i%10 == 0 {
			l.live(7, 9, 30, false)
		} else {
			l.live(7, 9, 1000, true)
		}
	}
	if got := l.Table(7, 9, 100).Reach(900); got < 0.8 {
		t.Errorf("of ten answers nine came to 1,000 tokens and went on; %.2f are said to reach 900", got)
	}
}

// TestPeakIsTheBatchsFuture: where lengths are certain the peak is at least what a
// step-by-step look finds, and exactly that for one length.
func TestPeakIsTheBatchsFuture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) Plan {
			return Plan{Sequences: rapid.IntRange(1, 3).Draw(t, "sequences"), Held: rapid.IntRange(0, 50).Draw(t, "held"), Most: rapid.IntRange(0, 300).Draw(t, "most")}
		})
		all := rapid.SliceOfN(one, 1, 12).Draw(t, "plans")
		if rapid.Bool().Draw(t, "one length") {
			for i := range all {
				all[i].Most = all[0].Most
			}
		}
		var f Peak
		for i := range all[1:] {
			f.Add(&all[1+i])
		}
		want, same := 0, true
		for tokens := range 301 {
			held := 0
			for _, p := range all {
				same = same && p.Most == all[0].Most
				if p.Most >= tokens {
					held += p.Held + p.Sequences*tokens
				}
			}
			want = max(want, held)
		}
		if got := f.With(&all[0]); got < want || same && got != want || float64(got) > 1.25*float64(want)+64 {
			t.Fatalf("peak of %+v is %d, want %d", all, got, want)
		}
		for i := range all[1:] {
			f.Remove(&all[1+i])
		}
		if got := f.With(&Plan{}); got != 0 {
			t.Fatalf("%d tokens left", got)
		}
	})
}

// TestPeakIsNotPassed: of batches whose lengths are as the table says, few hold more at
// any time than the peak and the margin kept beside it.
func TestPeakIsNotPassed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	length := func() int { return int(300 * random.ExpFloat64()) }
	l := NewLengths()
	for range 5000 {
		l.live(7, 9, length(), false)
	}
	var f Peak
	const batch, prompt = 60, 200
	for range batch {
		f.Add(&Plan{Sequences: 1, Held: prompt, Most: 1 << 20, Table: l.Table(7, 9, 100)})
	}
	peak := f.With(&Plan{})
	passed, sum := 0, 0.0
	const rounds = 1000
	for range rounds {
		most := 0
		lengths := make([]int, batch)
		for i := range lengths {
			lengths[i] = length()
		}
		for tokens := 0; tokens < 4000; tokens += 10 {
			held := 0
			for _, n := range lengths {
				if n >= tokens {
					held += prompt + tokens
				}
			}
			most = max(most, held)
		}
		sum += float64(most)
		if float64(most) > 1.05*float64(peak) {
			passed++
		}
	}
	if share := float64(passed) / rounds; share > 0.25 {
		t.Errorf("%.0f %% of batches pass the peak of %d by 5 %%", 100*share, peak)
	}
	if mean := sum / rounds; float64(peak) > 1.2*mean {
		t.Errorf("the peak is %d, where batches come to %.0f in the mean", peak, mean)
	}
}

func TestGaugeTellsSharingFromOthers(t *testing.T) {
	g := NewGauge()
	for range 50 { // prompts of 10,000 tokens of which 6,000 are held once, and 1,000 tokens of output
		g.Learn(7000, 11_000, 10_000, 0, 100_000)
	}
	if math.Abs(g.Sharing-0.6) > 0.02 || g.Bias > 100 {
		t.Errorf("sharing %.2f and bias %.0f, want 0.6 and 0", g.Sharing, g.Bias)
	}
	for range 50 { // as much again is another client's
		g.Learn(21_000, 11_000, 10_000, 0, 100_000)
	}
	if g.Sharing != 1 && math.Abs(g.Sharing-1) > 0.01 || math.Abs(g.Bias-10_000) > 200 {
		t.Errorf("sharing %.2f and bias %.0f, want 1 and 10000", g.Sharing, g.Bias)
	}
	g.Preempted(true, 0.05)
	if g.Caution == 0 {
		t.Error("a preemption leaves nothing more free")
	}
	g.Preempted(false, 60)
	if g.Caution != 0 {
		t.Errorf("a minute later %.3f is kept free", g.Caution)
	}
}

// TestStepsAreLearned: the model finds the coefficients of an engine whose steps are
// linear, within the noise.
func TestStepsAreLearned(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	step := func(prefill, seqs, kv float64) float64 {
		return 0.010 + 66e-6*prefill + 40e-6*seqs + 0.015*kv
	}
	var m Steps
	for range 2000 {
		prefill, seqs, kv := random.Float64()*500, 10+random.Float64()*100, random.Float64()*0.9
		m.Learn(prefill, seqs, kv, step(prefill, seqs, kv)*(0.95+0.1*random.Float64()))
	}
	for _, x := range [][3]float64{{0, 50, 0.5}, {250, 64, 0.8}, {2048, 0, 0}} {
		got, want := m.predict(x[0], x[1], x[2]), step(x[0], x[1], x[2])
		if math.Abs(got-want) > 0.1*want {
			t.Errorf("a step of %v takes %.1f ms, predicted %.1f", x, want*1e3, got*1e3)
		}
	}
}

// TestAloneIsSeen: what one sequence's steps take is not guessed from full batches, whose
// steps leave it open; guessed too high, it would call an engine in use too slow for its
// limit and fill it.
func TestAloneIsSeen(t *testing.T) {
	var m Steps
	for range 100 {
		m.Learn(300, 40, 0.3, 0.12)
	}
	if got := m.Alone(); got != 0 {
		t.Errorf("%.3f s for one sequence, though none was seen alone", got)
	}
	for range 100 {
		m.Learn(0, 1, 0.01, 0.045)
	}
	if got := m.Alone(); math.Abs(got-0.045) > 1e-9 {
		t.Errorf("%.3f s for one sequence, want the 0.045 seen", got)
	}
}

// TestPeakOfTheUnknown: where no length is known and none is limited, a batch is expected to
// hold a few times what it holds now, not what it could at most.
func TestPeakOfTheUnknown(t *testing.T) {
	l := NewLengths()
	var f Peak
	for range 256 {
		f.Add(&Plan{Sequences: 1, Held: 1000, Most: 1 << 40, Table: l.Table(7, 9, 300)})
	}
	if got := f.With(&Plan{}); got < 256_000 || got > 3*256_000 {
		t.Errorf("256 prompts of 1,000 tokens are expected to come to %d", got)
	}
}
