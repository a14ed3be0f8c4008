package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// TestTenantsDemo is a short form of the demo with tenants: what it checks holds, and its
// two outputs say it.
func TestTenantsDemo(t *testing.T) {
	if raced {
		t.Skip("under -race three engines and their clients need more than two cores; scripts/e2e runs it without")
	}
	t.Parallel()
	p := &process{t: t, ended: make(chan struct{})}
	watched := make(chan struct{})
	go func() { defer close(watched); p.watchCPU() }()
	report, err := runTenants(t.Context(), demoConfig{span: 12 * time.Second, overload: 2, seed: 1, tenants: true}, io.Discard)
	close(p.ended)
	<-watched
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		t.Logf("%s: %.3f", c.What, c.Value)
		if !c.OK {
			p.bound("%s: %.3f, want %g to %g", c.What, c.Value, c.Least, c.Most)
		}
	}
	var text strings.Builder
	if err := report.print(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	for _, c := range report.Checks {
		if !strings.Contains(text.String(), c.What) {
			t.Errorf("the table does not say %q", c.What)
		}
	}
	var back tenantsReport
	raw, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &back); err != nil || back.APIVersion != "penstock/v1" || len(back.Sides) != 3 || len(back.Sides[1].Tenants) != len(demoTenants) {
		t.Errorf("as JSON: %v, %.200s", err, raw)
	}
}
