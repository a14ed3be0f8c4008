package document

import (
	"strconv"
	"strings"
	"time"
)

// Bounds of what one place says.
const (
	MaxList = 64  // entries of a list that has no bound of its own
	MaxWord = 128 // bytes of a pattern, a keyword or a header's name
	MaxName = 256 // bytes of a model's or a tenant's name
)

// Words is a list, or one word.
type Words []string

// UnmarshalYAML takes one word for a list of one.
func (w *Words) UnmarshalYAML(decode func(any) error) error {
	var list []string
	if err := decode(&list); err == nil {
		*w = list
		return nil
	}
	var one string
	if err := decode(&one); err != nil {
		return err
	}
	*w = Words{one}
	return nil
}

// Number wants n from 0 to most.
func (d *Document) Number(at []any, n, most float64) {
	if !(n >= 0 && n <= most) {
		d.Wrong(at, "%v: write 0 to %.0f", n, most)
	}
}

// Time wants an optional time. One below a millisecond was written without its unit.
func (d *Document) Time(at []any, t, most time.Duration) {
	if t < 0 || t > most || t > 0 && t < time.Millisecond {
		d.Wrong(at, "%s: write a time with its unit, such as 500ms or 30s, at most %s", t, most)
	}
}

// Word wants 1 to most printable bytes.
func (d *Document) Word(at []any, s string, most int) {
	if s == "" || len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		d.Wrong(at, "%q: write 1 to %d printable bytes", s[:min(len(s), 40)], most)
	}
}

// Most wants at most most of what, and reports whether n is no more.
func (d *Document) Most(at []any, what string, n, most int) bool {
	if n > most {
		d.Wrong(at, "%d %s; write at most %d", n, what, most)
	}
	return n <= most
}

// List wants at most MaxList words of at most MaxWord bytes.
func (d *Document) List(at []any, list []string) {
	if !d.Most(at, "entries", len(list), MaxList) {
		return
	}
	for i, s := range list {
		d.Word(append(at, i), s, MaxWord)
	}
}

// Name is the name of entry i of a list of what, of which no other has it; name is what
// the file says, "" = nothing. The caller keeps taken for the list.
func (d *Document) Name(at []any, what string, i int, name string, taken map[string]bool) string {
	if name == "" {
		name = what + " " + strconv.Itoa(i+1)
	}
	d.Word(append(at, "name"), name, MaxWord)
	if taken[name] {
		d.Wrong(append(at, "name"), "two %ss are called %q; give each its own name", what, name)
	}
	taken[name] = true
	return name
}
