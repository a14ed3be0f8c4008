package document

import (
	"strings"
	"testing"
	"time"
)

func TestChecks(t *testing.T) {
	const text = "it: [one, two]\nnames: {name: x}\n"
	it, names := []any{"it"}, []any{"names"}
	long := strings.Repeat("x", 3)
	for _, c := range []struct {
		name  string
		check func(*Document)
		want  string // "" = nothing is wrong
	}{
		{"a number", func(d *Document) { d.Number(it, 7, 7) }, ""},
		{"a number above", func(d *Document) { d.Number(it, 8, 7) }, "line 1: 8: write 0 to 7\n"},
		{"a time", func(d *Document) { d.Time(it, time.Second, time.Second) }, ""},
		{"no time", func(d *Document) { d.Time(it, 0, time.Second) }, ""},
		{"a time without unit", func(d *Document) { d.Time(it, 5, time.Second) }, "line 1: 5ns: write a time with its unit"},
		{"a time above", func(d *Document) { d.Time(it, 2*time.Second, time.Second) }, "at most 1s"},
		{"a word", func(d *Document) { d.Word(it, long, 3) }, ""},
		{"no word", func(d *Document) { d.Word(it, "", 3) }, `line 1: "": write 1 to 3 printable bytes`},
		{"a long word", func(d *Document) { d.Word(it, long, 2) }, "write 1 to 2 printable bytes"},
		{"a control character", func(d *Document) { d.Word(it, "\x7f", 3) }, "printable bytes"},
		{"as many as may be", func(d *Document) { d.Most(it, "books", 2, 2) }, ""},
		{"too many", func(d *Document) { d.Most(it, "books", 3, 2) }, "line 1: 3 books; write at most 2"},
		{"a list", func(d *Document) { d.List(it, make([]string, MaxList+1)) }, "line 1: 65 entries; write at most 64"},
		{"a word of a list", func(d *Document) { d.List(it, []string{"one", ""}) }, "it: [one, two]\n              ^"},
		{"a name", func(d *Document) { d.Name(names, "rule", 0, "x", map[string]bool{}) }, ""},
		{"a name twice", func(d *Document) { d.Name(names, "rule", 0, "x", map[string]bool{"x": true}) }, `line 2: two rules are called "x"; give each its own name`},
		{"no name", func(d *Document) { d.Name(names, "rule", 2, "", map[string]bool{"rule 3": true}) }, `two rules are called "rule 3"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f struct {
				It    Words             `yaml:"it"`
				Names map[string]string `yaml:"names"`
			}
			d, err := Read([]byte(text), &f)
			if err != nil {
				t.Fatal(err)
			}
			c.check(d)
			switch problems := d.Problems(); {
			case c.want == "" && len(problems) > 0:
				t.Errorf("%v, want nothing wrong", problems)
			case c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), c.want)):
				t.Errorf("%q, want one problem with %q", problems, c.want)
			}
		})
	}
}
