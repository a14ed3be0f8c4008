package glob

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "x", true},
		{"*", "", true},
		{"a", "a", true},
		{"a", "b", false},
		{"a*", "a", true},
		{"a*", "abc", true},
		{"*c", "abc", true},
		{"a*c", "abbc", true},
		{"a*c", "abcd", false},
		{"*a*b*", "xaxbx", true},
		{"*a*b*", "xbxax", false},
		{"qwen*", "org/qwen", false},
		{"*/qwen*", "org/qwen-7b", true},
		{"a**", "a", true},
		{"[a]", "a", false},
		{strings.Repeat("a*", 60) + "b", strings.Repeat("a", 256), false},
	} {
		if got := Match(c.pattern, c.s); got != c.want {
			t.Errorf("Match(%q, %q) = %v", c.pattern, c.s, got)
		}
	}
}
