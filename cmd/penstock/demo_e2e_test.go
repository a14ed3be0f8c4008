//go:build e2e

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"penstock/cmd/penstock/demo"
)

// TestRealTenantsDemo is a short form of the demo with tenants: what it checks holds, but
// where other work took the CPU.
func TestRealTenantsDemo(t *testing.T) {
	p := &process{t: t, ended: make(chan struct{})}
	watched := make(chan struct{})
	go func() { defer close(watched); p.watchCPU() }()
	report, err := demo.Tenants(t.Context(), demo.Config{Span: 12 * time.Second, Overload: 2, Seed: 1}, io.Discard)
	close(p.ended)
	<-watched
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		if !c.OK {
			p.bound("%s: %.3f, want %g to %g", c.What, c.Value, c.Least, c.Most)
		}
	}
	var text strings.Builder
	if err := report.Write(&text, "text"); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
}
