package sim

import (
	"testing"
	"time"

	"penstock/sim/traces"
	"penstock/sim/world"
)

func TestGap(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name             string
		a, b             []float64
		backlogA, backlB []bool
		want             float64
	}{
		{"alike", []float64{5, 5}, []float64{5, 5}, []bool{yes, yes}, []bool{yes, yes}, 0},
		{"one ahead, then the other", []float64{9, 1, 1}, []float64{5, 4, 4}, []bool{yes, yes, yes}, []bool{yes, yes, yes}, 6},
		{"only while both want more", []float64{9, 9, 9}, []float64{1, 1, 1}, []bool{yes, yes, yes}, []bool{yes, no, yes}, 8},
		{"never both", []float64{9}, []float64{1}, []bool{yes}, []bool{no}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := gap(c.a, c.b, c.backlogA, c.backlB); got != c.want {
				t.Errorf("gap %g, want %g", got, c.want)
			}
			if got := gap(c.b, c.a, c.backlB, c.backlogA); got != c.want {
				t.Errorf("the other way round: gap %g, want %g", got, c.want)
			}
		})
	}
}

// Two tenants with something unserved all the time, one with twice the tokens; a third
// one has all it wants.
func TestFairness(t *testing.T) {
	w, err := world.New(plain(), world.Clients{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	tl := newTally(w, &Config{Workload: &traces.Workload{Tenants: 3}, Width: 1, Warm: time.Second, Span: 20 * time.Second})
	var all []outcome
	for _, at := range []time.Duration{2 * time.Second, 15 * time.Second} {
		for tenant, outputs := range []int{1, 2, 1} {
			for out := 1; out <= outputs; out++ {
				tl.served(&world.Visit{Arrival: traces.Arrival{Request: traces.Request{Prompt: 98}, Tenant: tenant}, Out: 1, Last: at})
			}
			o := outcome{Arrival: traces.Arrival{Request: traces.Request{At: at, Prompt: 98}, Tenant: tenant}, served: tenant == 2}
			all = append(all, o)
		}
	}
	tl.served(&world.Visit{Out: 2}) // not measured
	f := tl.fairness(all, 16_000)
	if f.Backlogged != 2 || f.Gap != 200 || f.Bound != 64_000 || f.Jain != 0.9 { // (200+400)^2 / 2 / (200^2+400^2)
		t.Errorf("got %+v, want 2 backlogged, a gap of 200 tokens, bound 64000, Jain 0.9", *f)
	}
	f.compare([]float64{10, 1, 3}, []float64{0, 2, 3})
	if f.OthersKept != 0.8 || f.WorstKept != 0.5 {
		t.Errorf("others keep %g, the worst %g, want 0.8 and 0.5", f.OthersKept, f.WorstKept)
	}
}

// What a replay says of tenants: their goodput adds up, and without the abuser the
// others lose nothing.
func TestAbuser(t *testing.T) {
	cfg := short(t, "tenants", "kv-bound", "forecast")
	cfg.Shifts = 1
	r := replay(t, cfg)[0]
	sum := 0.0
	for _, g := range r.Tenants {
		sum += g
	}
	if len(r.Tenants) != cfg.Workload.Tenants || sum < 0.99*r.Goodput || sum > 1.01*r.Goodput {
		t.Errorf("tenants %v, together %g of %g", r.Tenants, sum, r.Goodput)
	}
	if f := r.Fairness; f.Without[0] != 0 || f.OthersKept > 1.05 || f.OthersKept <= 0 || f.Bound != 2*2*160_000 {
		t.Errorf("beside the abuser: %+v", *f)
	}
}
