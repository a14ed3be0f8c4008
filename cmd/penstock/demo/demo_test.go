package demo

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// TestTenantsDemo: both outputs of the demo with tenants say what it found. That its
// checks hold is TestRealTenantsDemo's, which has the machine for itself.
func TestTenantsDemo(t *testing.T) {
	t.Parallel()
	report, err := Tenants(t.Context(), Config{Span: 2 * time.Second, Overload: 2, Seed: 1}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := report.Write(&text, "text"); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	for _, c := range report.Checks {
		if !strings.Contains(text.String(), c.What) {
			t.Errorf("the table does not say %q", c.What)
		}
	}
	var back Report
	raw, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &back); err != nil || back.APIVersion != "penstock/v1" || len(back.Sides) != 3 || len(back.Sides[1].Tenants) != len(senders) {
		t.Errorf("as JSON: %v, %.200s", err, raw)
	}
}
