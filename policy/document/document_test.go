package document

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type shelf struct {
	Name  string         `yaml:"name"`
	Books []book         `yaml:"books"`
	By    map[string]int `yaml:"by"`
}

type book struct {
	Title string `yaml:"title"`
	Size  size   `yaml:",inline"`
}

type size struct {
	Pages int `yaml:"pages"`
}

func TestRead(t *testing.T) {
	var got shelf
	d, err := Read([]byte("name: a\nbooks: [{title: b, pages: 7}]\nby: {any: 1}\n"), &got)
	if err != nil || len(d.Problems()) > 0 {
		t.Fatalf("%v, %v", err, d.Problems())
	}
	if diff := cmp.Diff(shelf{"a", []book{{"b", size{7}}}, map[string]int{"any": 1}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	d.Wrong([]any{"books", 0, "pages"}, "%d pages", 7)
	d.Wrong([]any{"books", 0, "author"}, "no author")
	d.Add(errors.New("no line"))
	var texts []string
	for _, p := range d.Problems() {
		texts = append(texts, p.Error())
	}
	want := []string{
		"line 2: 7 pages\n    books: [{title: b, pages: 7}]\n                       ^",
		"line 2: no author\n    books: [{title: b, pages: 7}]\n            ^",
		"no line",
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("problems (-want +got)\n%s", diff)
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "the file says nothing"},
		{"mane: a", "line 1: unknown key \"mane\", did you mean \"name\"?\n    mane: a\n    ^"},
		{"books: [{tittle: a}]", `did you mean "title"?`},
		{"zzzzzzzz: 1", "known here: books, by, name"},
		{"name: &x a", "anchors, aliases and tags"},
		{"books: 7", "books: 7"},
		{strings.Repeat("[", 17), "nests deeper than 16"},
	} {
		d, err := Read([]byte(c.text), new(shelf))
		if err == nil {
			err = errors.Join(d.Problems()...)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"tier", "tier", 0}, {"teir", "tier", 2}, {"", "ab", 2}, {"models", "model", 1}, {strings.Repeat("x", 41), "x", 41}} {
		if got := Edits(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
