package lanes

import (
	"errors"
	"strings"
	"testing"

	"penstock/lane"
	"penstock/policy/document"
)

// parse reads lanes from a file with nothing else, in the tiers a and b.
func parse(text string) (Lanes, error) {
	var f struct {
		Lanes File `yaml:"lanes"`
	}
	d, err := document.Read([]byte(text), &f)
	if err != nil {
		return Lanes{}, err
	}
	l := Read(d, &f.Lanes, []string{"a", "b"})
	return l, errors.Join(d.Problems()...)
}

func TestPermits(t *testing.T) {
	const limits = "default: {concurrency: 7}, patterns: [{tier: a*, model: big, concurrency: 2}]}"
	for _, c := range []struct {
		by, model string
		want      int
	}{
		{"by: [tier, model, pool], ", "q", 7},
		{"by: [tier, model, pool], ", "big", 2},
		{"by: [tier, model, pool, tenant], ", "q", 0},
		{"", "q", 0},
	} {
		l, err := parse("lanes: {" + c.by + limits)
		if got := l.Permits("a", c.model); got != c.want || err != nil {
			t.Errorf("%s%s of %q: %d permits, error %v, want %d", c.by, limits, c.model, got, err, c.want)
		}
	}
}

// TestOf: the first pattern that fits says, and takes from the default what it does not say.
func TestOf(t *testing.T) {
	l, err := parse(`
lanes:
  default: {max-requests: 9, width: 4}
  patterns:
    - {tenant: acme, tier: a, concurrency: 1}
    - {model: "q*", pool: h200, type: chat, max-requests: 2}
    - {model: q7, max-requests: 3}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lane lane.Key
		want Limits
	}{
		{lane.Key{}, Limits{MaxRequests: 9, Width: 4}},
		{lane.Key{Tier: "a", Model: "q7", Tenant: "acme"}, Limits{Concurrency: 1, MaxRequests: 9, Width: 4}},
		{lane.Key{Tier: "b", Model: "q7", Tenant: "acme"}, Limits{MaxRequests: 3, Width: 4}},
		{lane.Key{Type: "chat", Model: "q7", Pool: "h200"}, Limits{MaxRequests: 2, Width: 4}},
		{lane.Key{Type: "completion", Model: "q7", Pool: "h200"}, Limits{MaxRequests: 3, Width: 4}},
	} {
		if got := l.Of(c.lane); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.lane, got, c.want)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"by what", "lanes: {by: [tier, model, pool, colour]}\n", `"colour": write each of`},
		{"by one twice", "lanes: {by: [tier, model, pool, pool]}\n", `"pool": write each of`},
		{"pattern left out", "lanes: {by: [tier, model, pool], patterns: [{tenant: x}]}\n", "lanes.by leaves out"},
		{"negative rate", "lanes: {default: {starts-per-second: -1}}\n", "-1: write 0 to"},
		{"not a number", "lanes: {default: {starts-per-second: .nan}}\n", "NaN: write 0 to"},
		{"unknown key of a pattern", "lanes: {patterns: [{poool: x}]}\n", `unknown key "poool", did you mean "pool"?`},
		{"wrong type in a pattern", "lanes: {patterns: [{model: x, width: y}]}\n", "width: y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := parse(c.yaml); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
