package reason

import (
	"regexp"
	"testing"
)

func TestNamesAreUniqueLabels(t *testing.T) {
	label := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := map[string]Reason{}
	for _, r := range All() {
		name := r.String()
		if !label.MatchString(name) {
			t.Errorf("reason %d has name %q, want a lower-case label", r, name)
		}
		if other, dup := seen[name]; dup {
			t.Errorf("reasons %d and %d are both %q", other, r, name)
		}
		seen[name] = r
	}
	if got := Reason(255).String(); got != "unknown" {
		t.Errorf("Reason(255) = %q, want unknown", got)
	}
}
