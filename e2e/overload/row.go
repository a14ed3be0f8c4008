package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"penstock/load"
)

// figure is one cell of a row.
type figure struct {
	Column string
	Format string // of one number
	Value  float64
	Spread bool // over several runs the lowest and highest are shown
}

// row is one run.
type row struct {
	Name    string
	Rate    float64 // requests per second
	Seed    uint64
	Figures []figure
	Note    string // not compared
}

// rowOf is the row of one workload.
func rowOf(s load.Summary) []figure {
	return []figure{
		{"good req/s", "%.2f", s.Goodput, true},
		{"good tok/s", "%.0f", s.TokenGoodput, false},
		{"TTFT p50", "%.2f s", s.TTFTp50.Seconds(), false},
		{"p99", "%.2f s", s.TTFTp99.Seconds(), false},
		{"gap p99", "%.2f s", s.GapP99.Seconds(), false},
		{"good by prompt length, Q1", "%.2f", s.Quartiles[0], false},
		{"Q2", "%.2f", s.Quartiles[1], false},
		{"Q3", "%.2f", s.Quartiles[2], false},
		{"Q4", "%.2f", s.Quartiles[3], false},
		{"refusals without Retry-After", "%.0f", float64(s.Untold), false},
	}
}

// machineLoad is the machine's load average over a minute, of which a run has its
// own part; 0 = not known.
func machineLoad() (load float64) {
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, _ = fmt.Sscan(string(text), &load)
	}
	return load
}

// write prints r, and appends it to the file of --out.
func (o *options) write(figures []figure, note string) error {
	if o.profile == "" {
		figures = append(figures, figure{"load of the machine", "%.1f", machineLoad(), false})
	}
	r := row{o.name, o.rate, o.seed, figures, note}
	table(os.Stdout, []row{r}, o.header)
	if o.out == "" {
		return nil
	}
	file, err := os.OpenFile(o.out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return json.NewEncoder(file).Encode(r)
}

// table prints rows of one name and rate as one, of medians.
func table(w io.Writer, rows []row, header bool) {
	if len(rows) == 0 {
		return
	}
	if header {
		line := "| run | req/s |"
		for _, f := range rows[0].Figures {
			line += " " + f.Column + " |"
		}
		_, _ = fmt.Fprintf(w, "%s\n|%s\n", line, strings.Repeat(" --- |", strings.Count(line, "|")-1))
	}
	for len(rows) > 0 {
		first := rows[0]
		var same, rest []row
		for _, r := range rows {
			if r.Name == first.Name && r.Rate == first.Rate && len(r.Figures) == len(first.Figures) {
				same = append(same, r)
			} else {
				rest = append(rest, r)
			}
		}
		rows = rest
		_, _ = fmt.Fprintf(w, "| %s | %g |", first.Name, first.Rate)
		for i, f := range first.Figures {
			var values []float64
			for _, r := range same {
				values = append(values, r.Figures[i].Value)
			}
			slices.Sort(values)
			_, _ = fmt.Fprintf(w, " "+f.Format, values[len(values)/2])
			if f.Spread && len(values) > 1 {
				_, _ = fmt.Fprintf(w, " ("+f.Format+" to "+f.Format+")", values[0], values[len(values)-1])
			}
			_, _ = fmt.Fprint(w, " |")
		}
		if len(same) == 1 && first.Note != "" {
			_, _ = fmt.Fprintf(w, " %s |", first.Note)
		}
		_, _ = fmt.Fprintln(w)
	}
}

// summarize prints the medians of a file of --out.
func summarize(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	var rows []row
	for lines := json.NewDecoder(file); lines.More(); {
		var r row
		if err := lines.Decode(&r); err != nil {
			return err
		}
		rows = append(rows, r)
	}
	table(os.Stdout, rows, true)
	return nil
}
