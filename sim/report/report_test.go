package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"penstock/sim"
)

func TestReports(t *testing.T) {
	rows := []sim.Row{
		{Policy: "forecast", Workload: "a<b.csv", Profile: "p", Load: 0.7, Figures: sim.Figures{Goodput: 4.2, Tenants: []float64{1, 2}}},
		{Policy: "forecast", Workload: "a<b.csv", Profile: "p", Load: 2, Figures: sim.Figures{Goodput: 5}},
		{Policy: "none", Workload: "a<b.csv", Profile: "q", Load: 2, Setting: "as it is"},
	}
	var out bytes.Buffer
	if err := SVG(&out, rows); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for d := xml.NewDecoder(&out); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != 2 {
		t.Errorf("%d lines, want one per policy and chart", lines)
	}
	if err := errors.Join(Table(&out, rows), Goodput(&out, rows)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4.20/s", "1.00 2.00", "as it is", "a<b.csv   p        0.7   forecast  4.20/s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}
