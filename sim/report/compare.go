package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"penstock/sim"
)

// unit is what two rows of one cell are compared in. "Own" and tokens do not count a
// prompt's own prefill: else who serves a prompt that takes longer than the limit by
// itself would have nothing for it.
type unit struct {
	name string
	of   func(p pair, shift int) (ours, theirs float64)
	more float64 // added to both, so that a baseline without any goodput gives a ratio
}

// even is the quartile ratio from which on a policy is taken to prefer no prompt length.
const even = 0.8

var units = [...]unit{
	{"requests", func(p pair, i int) (float64, float64) { return p.ours.Shifts[i].Goodput, p.theirs.Shifts[i].Goodput }, 0.01},
	{"own", func(p pair, i int) (float64, float64) {
		return p.ours.Shifts[i].GoodputOwn, p.theirs.Shifts[i].GoodputOwn
	}, 0.01},
	{"tokens", func(p pair, i int) (float64, float64) {
		return p.ours.Shifts[i].TokensOwn, p.theirs.Shifts[i].TokensOwn
	}, 10},
	{"even-handed", evenHanded, 0.01},
}

// evenHanded is requests, own prefill not counted; or tokens, in hundreds, where one of
// the two lets long prompts in less often than short ones: a gain bought by refusing them
// is none.
func evenHanded(p pair, i int) (float64, float64) {
	a, b := &p.ours.Shifts[i], &p.theirs.Shifts[i]
	if min(p.ours.Even, p.theirs.Even) < even && p.ours.Goodput > 0 && p.theirs.Goodput > 0 {
		return a.TokensOwn / 100, b.TokensOwn / 100
	}
	return a.GoodputOwn, b.GoodputOwn
}

// pair is one cell under two policies.
type pair struct {
	ours, theirs *sim.Row
}

// ratio is the geometric mean over the shifts: each is the same requests twice.
func (p pair) ratio(u *unit) float64 {
	mean, _, _ := p.ratios(u)
	return mean
}

// ratios are the mean, the lowest and the highest over the shifts.
func (p pair) ratios(u *unit) (mean, least, most float64) {
	n := min(len(p.ours.Shifts), len(p.theirs.Shifts))
	least = math.Inf(1)
	for i := range n {
		a, b := u.of(p, i)
		r := (a + u.more) / (b + u.more)
		mean += math.Log(r) / float64(n)
		least, most = min(least, r), max(most, r)
	}
	return math.Exp(mean), least, most
}

// over is what a unit's ratios are over some cells.
type over struct {
	mean  float64 // geometric; a ratio above 20 counts as 20, because most of those are over almost nothing
	worst float64
	at    pair // where that is
	below int  // cells below 0.99
}

const mostRatio = 20

func sum(pairs []pair, u *unit) over {
	o := over{worst: math.Inf(1)}
	for _, p := range pairs {
		r := p.ratio(u)
		o.mean += math.Log(min(r, mostRatio)) / float64(len(pairs))
		if r < 0.99 {
			o.below++
		}
		if r < o.worst {
			o.worst, o.at = r, p
		}
	}
	o.mean = math.Exp(o.mean)
	return o
}

// table finds rows: by policy, then cell, one for each setting.
type table map[string]map[sim.Cell][]*sim.Row

func index(rows []sim.Row) table {
	t := table{}
	for i := range rows {
		r := &rows[i]
		if t[r.Policy] == nil {
			t[r.Policy] = map[sim.Cell][]*sim.Row{}
		}
		t[r.Policy][r.Cell()] = append(t[r.Policy][r.Cell()], r)
	}
	return t
}

// cells are those of a policy without bursts, retries or tiers, in order.
func (t table) cells(policy string) (cells []sim.Cell) {
	for c := range t[policy] {
		if c.Scenario == "" && c.Workload != "tiers" {
			cells = append(cells, c)
		}
	}
	slices.SortFunc(cells, func(a, b sim.Cell) int {
		return cmp.Or(cmp.Compare(a.Profile, b.Profile), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Load, b.Load))
	})
	return cells
}

// fixed ends the name of a baseline with one setting for all of a profile's cells.
const fixed = "-fixed"

// setting keeps the rows of a policy whose setting ends so.
func (t table) setting(policy, end string) table {
	kept := table{}
	for p, cells := range t {
		kept[p] = map[sim.Cell][]*sim.Row{}
		for c, rows := range cells {
			kept[p][c] = slices.DeleteFunc(slices.Clone(rows), func(r *sim.Row) bool { return p == policy && !strings.HasSuffix(r.Setting, end) })
		}
	}
	return kept
}

// against pairs the cells that both policies have. The other policy has in each cell the
// setting with which ours looks worst in this unit; or, fixed, the one with which ours
// looks worst over all cells of the profile.
func (t table) against(ours, theirs string, u *unit) (pairs []pair) {
	base, one := strings.CutSuffix(theirs, fixed)
	if t[theirs] != nil { // a replay that wrote its best settings only
		base, one = theirs, false
	}
	var chosen map[string]string
	if one {
		chosen = t.choose(ours, base, u)
	}
	for _, c := range t.cells(ours) {
		var worst pair
		for _, r := range t[base][c] {
			p := pair{t[ours][c][0], r}
			if one && r.Setting != chosen[c.Profile] {
				continue
			}
			if worst.theirs == nil || p.ratio(u) < worst.ratio(u) {
				worst = p
			}
		}
		if worst.theirs != nil {
			pairs = append(pairs, worst)
		}
	}
	return pairs
}

// choose is the setting of a policy for each profile.
func (t table) choose(ours, base string, u *unit) map[string]string {
	score, chosen := map[[2]string]float64{}, map[string]string{}
	for _, c := range t.cells(ours) {
		for _, r := range t[base][c] {
			score[[2]string{c.Profile, r.Setting}] += math.Log(pair{t[ours][c][0], r}.ratio(u))
		}
	}
	for _, c := range t.cells(ours) {
		for _, r := range t[base][c] {
			best, found := chosen[c.Profile]
			if !found || score[[2]string{c.Profile, r.Setting}] < score[[2]string{c.Profile, best}] {
				chosen[c.Profile] = r.Setting
			}
		}
	}
	return chosen
}

// where keeps the pairs of some cells.
func where(pairs []pair, want func(sim.Cell) bool) []pair {
	return slices.DeleteFunc(slices.Clone(pairs), func(p pair) bool { return !want(p.ours.Cell()) })
}

// mostLosses is how many cells a comparison lists.
const mostLosses = 30

// Compare prints a policy's goodput over that of each other one, the targets it is held
// to, and the cells where it loses most.
func Compare(w io.Writer, rows []sim.Row, policy string) error {
	rowsOf := index(rows)
	var loads []float64
	for _, c := range rowsOf.cells(policy) {
		if !slices.Contains(loads, c.Load) {
			loads = append(loads, c.Load)
		}
	}
	slices.Sort(loads)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "%s over\tload\tcells", policy)
	for _, u := range units {
		_, _ = fmt.Fprintf(t, "\t%s: mean\tworst\tbelow 0.99", u.name)
	}
	_, _ = fmt.Fprintln(t, "\tworst at\t")
	var losses []pair
	for _, b := range baselines(rows, policy) {
		var pairs [len(units)][]pair
		for i := range units {
			pairs[i] = rowsOf.against(policy, b, &units[i])
		}
		if !strings.HasSuffix(b, fixed) {
			losses = append(losses, pairs[len(units)-1]...)
		}
		for _, load := range loads {
			var o over
			for i := range units {
				some := where(pairs[i], func(c sim.Cell) bool { return c.Load == load })
				if len(some) == 0 {
					break
				}
				if i == 0 {
					_, _ = fmt.Fprintf(t, "%s\t%g\t%d", b, load, len(some))
				}
				o = sum(some, &units[i])
				_, _ = fmt.Fprintf(t, "\t%.2f\t%.2f\t%d", o.mean, o.worst, o.below)
			}
			if o.at.ours != nil {
				_, _ = fmt.Fprintf(t, "\t%s\t\n", place(o.at))
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := held(w, rows, rowsOf, policy); err != nil {
		return err
	}
	return lost(w, losses)
}

// baselines are the other policies in order, each that has settings to carry once more.
func baselines(rows []sim.Row, policy string) (names []string) {
	add := func(name string) {
		if name != policy && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	settings := map[string]string{}
	for _, r := range rows {
		add(r.Policy)
		if first, found := settings[r.Policy]; !found {
			settings[r.Policy] = r.Setting
		} else if first != r.Setting && slices.Contains(sim.Carriable(), r.Policy) {
			add(r.Policy + fixed)
		}
	}
	return names
}

func place(p pair) string { return p.ours.Workload + " on " + p.ours.Profile }

// lost lists the cells where the ratio is below 0.99, the lowest first.
func lost(w io.Writer, pairs []pair) error {
	u := &units[len(units)-1]
	pairs = slices.DeleteFunc(pairs, func(p pair) bool { return p.ratio(u) >= 0.99 })
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(a.ratio(u), b.ratio(u)) })
	_, _ = fmt.Fprintf(w, "\n%d cells below 0.99, %s; the lowest:\n", len(pairs), u.name)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "cell\tload\tagainst\tratio\tover the shifts\trequests\ttokens\tits quartiles\tits setting\t")
	for _, p := range pairs[:min(len(pairs), mostLosses)] {
		mean, least, most := p.ratios(u)
		_, _ = fmt.Fprintf(t, "%s\t%g\t%s\t%.2f\t%.2f-%.2f\t%.2f\t%.2f\t%s\t%s\t\n", place(p), p.ours.Load, p.theirs.Policy, mean, least, most,
			p.ratio(&units[0]), p.ratio(&units[2]), list(p.theirs.Quartiles[:]), dash(p.theirs.Setting))
	}
	return t.Flush()
}
