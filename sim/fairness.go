package sim

import (
	"math"
	"time"

	"penstock/sim/world"
)

// Fairness is how alike tenants are served, in tokens as virtual token counters weigh
// them: a prompt's once, an output's twice.
type Fairness struct {
	Backlogged float64   `json:"backlogged"`        // tenants of whose requests a tenth and more got no token
	Jain       float64   `json:"jain,omitempty"`    // of the tokens of those; 1 = all alike, 1/n = one has all
	Gap        float64   `json:"token_gap"`         // most that one tenant got more than another while both were backlogged
	Bound      float64   `json:"vtc_bound"`         // what the fair queueing of VTC (arXiv 2401.00588) promises: 2 x max(longest prompt, 2 x KV tokens)
	Without    []float64 `json:"without,omitempty"` // goodput of each tenant without the abuser
	OthersKept float64   `json:"others_kept"`       // of that of all but the abuser, what is left beside it
	WorstKept  float64   `json:"worst_kept"`        // and of the tenant that loses most
}

// What virtual token counters weigh, and the window in which a tenant whose request
// gets no token counts as backlogged: a dozen requests of a tenant that offers its
// part at 3 times the load.
const (
	perPrompt, perOutput = 1, 2
	backlogWindow        = 10 * time.Second
	backlogShare         = 0.1
)

// served counts a token that reached its client.
func (t *tally) served(v *world.Visit) {
	now := v.Last
	if t.tenants < 2 || now < t.warm || now >= t.warm+t.span {
		return
	}
	tokens := float64(perOutput)
	if v.Out == 1 {
		tokens += perPrompt * float64(v.Prompt)
	}
	row := t.service[v.Tenant]
	row[min(int((now-t.warm)/backlogWindow), len(row)-1)] += tokens
}

// fairness is that of the measured span; nil for one tenant of a tier.
func (t *tally) fairness(all []outcome, kv int) *Fairness {
	if t.tenants < 2 || t.tiers != nil {
		return nil
	}
	windows, longest := len(t.service[0]), 0
	came, unmet := make([]float64, t.tenants), make([]float64, t.tenants)
	unserved := make([][]bool, t.tenants)
	for i := range unserved {
		unserved[i] = make([]bool, windows)
	}
	for i := range all {
		o := &all[i]
		longest = max(longest, o.Prompt)
		came[o.Tenant]++
		if !o.served {
			unmet[o.Tenant]++
			unserved[o.Tenant][min(int((o.At-t.warm)/backlogWindow), windows-1)] = true
		}
	}
	f := &Fairness{Bound: 2 * float64(max(perPrompt*longest, perOutput*kv))}
	var sum, squares float64
	for i := range t.tenants {
		tokens := 0.0
		for k := range windows {
			tokens += t.service[i][k]
		}
		if unmet[i] > backlogShare*came[i] {
			f.Backlogged++
			sum += tokens
			squares += tokens * tokens
		}
		for j := range i {
			f.Gap = max(f.Gap, gap(t.service[i], t.service[j], unserved[i], unserved[j]))
		}
	}
	if squares > 0 {
		f.Jain = sum * sum / (f.Backlogged * squares)
	}
	return f
}

// gap is the most that one of two got more than the other over any windows in a row in
// which both had something unserved.
func gap(a, b []float64, backlogA, backlogB []bool) (most float64) {
	var ahead, behind float64 // of the best run that ends here
	for k := range a {
		if !backlogA[k] || !backlogB[k] {
			ahead, behind = 0, 0
			continue
		}
		d := a[k] - b[k]
		ahead, behind = max(ahead, 0)+d, min(behind, 0)+d
		most = max(most, ahead, -behind)
	}
	return most
}

// compare sets what the tenants beside an abuser get against what they get without it.
func (f *Fairness) compare(with, without []float64) {
	var sum, alone float64
	f.Without, f.WorstKept = without, math.Inf(1)
	for i := 1; i < len(with); i++ {
		sum += with[i]
		alone += without[i]
		f.WorstKept = min(f.WorstKept, with[i]/max(without[i], leastGoodput))
	}
	f.OthersKept = sum / max(alone, leastGoodput)
}

func (f *Fairness) scalars() []*float64 {
	all := []*float64{&f.Backlogged, &f.Jain, &f.Gap, &f.Bound, &f.OthersKept, &f.WorstKept}
	for i := range f.Without {
		all = append(all, &f.Without[i])
	}
	return all
}
