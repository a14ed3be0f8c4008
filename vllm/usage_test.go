package vllm

import (
	"regexp"
	"strings"
	"testing"
)

// without removes usage from a captured stream by other means than the code does:
// every usage member but the last event's, and that event too if final is true.
func without(t testing.TB, name string, final bool) string {
	t.Helper()
	member := regexp.MustCompile(`,"usage":\{[^{}]*\}`)
	events := strings.SplitAfter(fixtureBody(t, name), "\n\n")
	var kept strings.Builder
	for _, e := range events {
		switch {
		case !strings.Contains(e, `"choices":[]`):
			kept.WriteString(member.ReplaceAllString(e, ""))
		case !final:
			kept.WriteString(e)
		}
	}
	return kept.String()
}
