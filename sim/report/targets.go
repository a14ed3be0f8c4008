package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"penstock/sim"
)

// target is what penstock is held to.
type target struct {
	over  string // the baseline
	with  string // how its setting ends; "" = its best
	what  string // of its cells
	where func(sim.Cell) bool
	least float64
	mean  bool // over the cells; else each of them
}

func all(sim.Cell) bool { return true }

func at(load float64, workload string) func(sim.Cell) bool {
	return func(c sim.Cell) bool { return c.Load == load && (workload == "" || c.Workload == workload) }
}

var targets = []target{
	{"none", "", "conv at 1.5", at(1.5, "conv"), 10, true},
	{"none", "", "all at 0.7", at(0.7, ""), 0.99, false},
	{"watermark-ttl", "wait 2s", "conv at 1.5", at(1.5, "conv"), 1.8, true},
	{"watermark-ttl", "wait 2s", "conv at 2", at(2, "conv"), 3, true},
	{"vllm-caps", "", "all", all, 1, true},
	{"vllm-caps-fixed", "", "all", all, 1.5, true},
	{"bounded-queue", "", "all", all, 0.97, false},
	{"bounded-queue-fixed", "", "all", all, 1.5, true},
	{"gauge-shed-even", "", "kv-bound from 1.5", func(c sim.Cell) bool { return c.Load >= 1.5 && c.Profile == "kv-bound" }, 1.10, true},
	{"gauge-shed-even", "", "all", all, 0.99, false},
	{"concurrency-even", "", "all", all, 1, false},
	{"oracle", "", "short outputs", func(c sim.Cell) bool { return c.Workload != "conv-x5" }, 0.97, false},
	{"oracle", "", "long outputs", func(c sim.Cell) bool { return c.Workload == "conv-x5" }, 0.92, false},
}

// held prints which targets hold.
func held(w io.Writer, rows []sim.Row, rowsOf table, policy string) error {
	u := &units[len(units)-1]
	_, _ = fmt.Fprintf(w, "\nTargets, %s:\n", u.name)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "of\twhere\tcells\twanted\tmean\tworst\tat\tholds\t")
	for _, g := range targets {
		from, name := rowsOf, g.over
		if g.with != "" {
			from, name = rowsOf.setting(g.over, g.with), g.over+", "+g.with
		}
		pairs := where(from.against(policy, g.over, u), g.where)
		if len(pairs) == 0 {
			continue
		}
		o := sum(pairs, u)
		judged, how := o.worst, "each"
		if g.mean {
			judged, how = o.mean, "mean"
		}
		_, _ = fmt.Fprintf(t, "goodput over %s\t%s\t%d\t>= %g, %s\t%.2f\t%.2f\t%s at %g\t%s\t\n", name, g.what, len(pairs), g.least, how,
			o.mean, o.worst, place(o.at), o.at.ours.Load, yes(judged >= g.least))
	}
	calm := func(r *sim.Row) bool { return r.Scenario == "" && r.Low == nil }
	limits(t, rows, policy, "preemptions per 1,000", "<= 1", calm, func(r *sim.Row) float64 { return -r.Preempted }, -1)
	limits(t, rows, policy, "worst over best prompt quartile", ">= 0.8", calm, func(r *sim.Row) float64 { return r.Even }, even)
	without := func(r *sim.Row) *sim.Row {
		c := r.Cell()
		c.Scenario = ""
		for _, usual := range rowsOf[policy][c] {
			return usual
		}
		return nil
	}
	limits(t, rows, policy, "goodput with retries over without", ">= 0.9",
		func(r *sim.Row) bool { return strings.HasPrefix(r.Scenario, "retries") && without(r) != nil },
		func(r *sim.Row) float64 { return r.GoodputOwn / without(r).GoodputOwn }, 0.9)
	limits(t, rows, policy, "seconds to recover", "<= 4", func(r *sim.Row) bool { return r.Recover != nil }, func(r *sim.Row) float64 { return -*r.Recover }, -4)
	tiered := func(r *sim.Row) bool { return r.Low != nil }
	limits(t, rows, policy, "of the low tier's 20,000, not answered", "0", tiered, func(r *sim.Row) float64 { return -r.Low.Refused - r.Low.Left }, 0)
	limits(t, rows, policy, "first tier's TTFT p99 over that without", "<= 1.05", tiered, func(r *sim.Row) float64 { return -r.Low.TTFT }, -1.05)
	fair := func(r *sim.Row) bool { return calm(r) && r.Fairness != nil }
	limits(t, rows, policy, "token gap over VTC's bound", "<= 1", fair, func(r *sim.Row) float64 { return -r.Fairness.Gap / r.Fairness.Bound }, -1)
	limits(t, rows, policy, "others' goodput beside an abuser, up to load 2", ">= 0.95",
		func(r *sim.Row) bool { return fair(r) && r.Load <= 2 && r.Fairness.OthersKept > 0 },
		func(r *sim.Row) float64 { return r.Fairness.OthersKept }, 0.95)
	return t.Flush()
}

// limits prints a limit of the policy's own rows: of must be at least least. A figure
// that must be low is given negative.
func limits(w io.Writer, rows []sim.Row, policy, name, wanted string, where func(*sim.Row) bool, of func(*sim.Row) float64, least float64) {
	worst, mean, n := (*sim.Row)(nil), 0.0, 0
	for i := range rows {
		r := &rows[i]
		if r.Policy != policy || !where(r) {
			continue
		}
		mean, n = mean+of(r), n+1
		if worst == nil || of(r) < of(worst) {
			worst = r
		}
	}
	if worst == nil {
		return
	}
	_, _ = fmt.Fprintf(w, "%s\tall\t%d\t%s, each\t%.2f\t%.2f\t%s on %s at %g\t%s\t\n", name, n, wanted, math.Abs(mean/float64(n)), math.Abs(of(worst)),
		worst.Workload, worst.Profile, worst.Load, yes(of(worst) >= least))
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
