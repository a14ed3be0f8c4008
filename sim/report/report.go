// Package report shows the rows of a replay: a table, a chart, and the ratios between
// policies that penstock is held to.
package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"penstock/sim"
)

// Table prints rows for people.
func Table(w io.Writer, rows []sim.Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "workload\tprofile\tscenario\tload\tpolicy\tgoodput\tspread\town prefill not counted\tattained\ttokens\tTTFT p50\tp99\tgap p99\tpreempted/1k\trecomputed\trefused\tlost\tKV\tprefix hits\twasted\tnot good: left, late, slow, pause\tattained by prompt quartile\tper tenant\tkept beside the abuser\ttoken gap over bound\tJain\trecovered after\tsetting\t")
	for _, r := range rows {
		kept, gap, jain, recovered := "-", "-", "-", "-"
		if f := r.Fairness; f != nil {
			kept, gap, jain = list([]float64{f.OthersKept, f.WorstKept}), fmt.Sprintf("%.2f", f.Gap/f.Bound), fmt.Sprintf("%.3f of %g", f.Jain, f.Backlogged)
		}
		if r.Recover != nil {
			recovered = fmt.Sprintf("%.2f s", *r.Recover)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%g\t%s\t%.2f/s\t%.2f-%.2f\t%.2f/s\t%.3f\t%.0f/s\t%.2f s\t%.2f s\t%.2f s\t%.1f\t%.4f\t%.3f\t%.3f\t%.2f\t%.2f\t%.3f\t%d %d %d %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			r.Workload, r.Profile, dash(r.Scenario), r.Load, r.Policy, r.Goodput, r.Spread[0], r.Spread[1], r.GoodputOwn, r.Attainment, r.TokenGoodput, r.TTFTp50, r.TTFTp99, r.GapP99,
			r.Preempted, r.Recomputed, r.Refused, r.Lost, r.KV, r.Hits, r.Wasted, r.NotGood.Left, r.NotGood.Late, r.NotGood.Slow, r.NotGood.Pause,
			list(r.Quartiles[:]), list(r.Tenants), kept, gap, jain, recovered, dash(r.Setting))
	}
	return t.Flush()
}

// Goodput prints the columns that one compares by.
func Goodput(w io.Writer, rows []sim.Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "workload\tprofile\tload\tpolicy\tgoodput\tspread\town prefill not counted\ttokens of those\tby prompt quartile\tpreempted/1k\twasted\tsetting\t")
	for _, r := range rows {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.2f/s\t%.2f-%.2f\t%.2f/s\t%.0f/s\t%s\t%.1f\t%.2f\t%s\t\n",
			r.Workload, r.Profile, strings.TrimSpace(fmt.Sprintf("%g %s", r.Load, r.Scenario)), r.Policy, r.Goodput, r.Spread[0], r.Spread[1],
			r.GoodputOwn, r.TokensOwn, list(r.Quartiles[:]), r.Preempted, r.Wasted, dash(r.Setting))
	}
	return t.Flush()
}

func list(all []float64) string {
	var b strings.Builder
	for _, x := range all {
		_, _ = fmt.Fprintf(&b, " %.2f", x)
	}
	return dash(strings.TrimSpace(b.String()))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// A chart's sizes in pixels.
const (
	chartWidth, chartHeight = 760, 360
	plotLeft, plotTop       = 60, 40
	plotWidth, plotHeight   = 470, 270
)

var colours = []string{"#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#7f7f7f", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#393b79", "#637939"}

// SVG draws goodput over load, one chart per workload and profile.
func SVG(w io.Writer, rows []sim.Row) error {
	type chart struct{ workload, profile string }
	var charts []chart
	for _, r := range rows {
		if c := (chart{r.Workload, r.Profile}); !slices.Contains(charts, c) {
			charts = append(charts, c)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, chartHeight*len(charts))
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	for i, c := range charts {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", i*chartHeight)
		fmt.Fprintf(&b, `<text x="%d" y="22" font-size="15">%s on %s: good requests per second</text>`+"\n", plotLeft, html.EscapeString(c.workload), html.EscapeString(c.profile))
		draw(&b, slices.DeleteFunc(slices.Clone(rows), func(r sim.Row) bool { return r.Workload != c.workload || r.Profile != c.profile }))
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// draw is one chart's axes, lines and names.
func draw(b *strings.Builder, rows []sim.Row) {
	var load, top float64
	for _, r := range rows {
		load, top = max(load, r.Load), max(top, r.Goodput)
	}
	step := math.Pow(10, math.Floor(math.Log10(max(top, 0.01))))
	if top/step < 2 {
		step /= 5
	} else if top/step < 5 {
		step /= 2
	}
	top = step * math.Ceil(max(top, 0.01)/step)
	x := func(l float64) float64 { return plotLeft + l/load*plotWidth }
	y := func(g float64) float64 { return plotTop + plotHeight - g/top*plotHeight }
	for g := 0.0; g <= top+step/2; g += step {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.3g</text>`+"\n", plotLeft, y(g), plotWidth, plotLeft-6, y(g)+4, g)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">offered load, 1 = what the engine can do</text>`+"\n", plotLeft+plotWidth/2, plotTop+plotHeight+36)
	var names, marked []string
	for _, r := range rows {
		if label := fmt.Sprintf("%g", r.Load); !slices.Contains(marked, label) {
			marked = append(marked, label)
			fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(r.Load), plotTop+plotHeight+18, label)
		}
		if !slices.Contains(names, r.Policy) {
			names = append(names, r.Policy)
		}
	}
	for i, name := range names {
		colour := colours[i%len(colours)]
		var points []string
		for _, r := range rows {
			if r.Policy == name {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(r.Load), y(r.Goodput)))
			}
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="14" height="3" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			plotLeft+plotWidth+20, plotTop+10+18*i, colour, plotLeft+plotWidth+40, plotTop+15+18*i, html.EscapeString(name))
	}
}
