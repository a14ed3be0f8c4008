// Package document reads a YAML file into a struct, strictly: a key that is not known, or
// a value that is wrong, is a problem with its line, a mark under it and what was probably
// meant. Its time is bounded whatever the file says.
package document

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	maxLine  = 8 << 10 // bytes; with maxNest it bounds the time of the YAML reader
	maxNest  = 16
	maxFault = 10 // problems shown at once
)

// Document is a file's text and tree.
type Document struct {
	text     []byte
	root     ast.Node
	problems []error
}

// ErrEmpty is that of a file without a value.
var ErrEmpty = errors.New("the file says nothing")

// Read parses text into the struct that into points to; keys that it does not have are
// problems, and nothing is read then.
func Read(text []byte, into any) (*Document, error) {
	if err := flat(text); err != nil {
		return nil, err
	}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("%s", yaml.FormatError(err, false, true))
	}
	if len(tree.Docs) > 1 {
		return nil, fmt.Errorf("the file has %d documents; write one", len(tree.Docs))
	}
	d := &Document{text: text}
	if len(tree.Docs) == 0 || tree.Docs[0].Body == nil || tree.Docs[0].Body.Type() == ast.CommentGroupType || tree.Docs[0].Body.Type() == ast.NullType {
		return nil, ErrEmpty
	}
	d.root = tree.Docs[0].Body
	d.check(d.root, reflect.TypeOf(into).Elem())
	if len(d.problems) > 0 {
		return d, nil
	}
	if err := yaml.NodeToValue(d.root, into, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s", yaml.FormatError(err, false, true))
	}
	return d, nil
}

// flat refuses text that the YAML reader would take very long for.
func flat(text []byte) error {
	depth, number := 0, 1
	for line := range strings.Lines(string(text)) {
		if len(line) > maxLine {
			return fmt.Errorf("line %d has %d bytes; write at most %d", number, len(line), maxLine)
		}
		if strings.Count(line, "- ") > maxNest || strings.Count(line, "? ") > maxNest {
			return fmt.Errorf("line %d has more than %d dashes; write a list as [a, b]", number, maxNest)
		}
		for i, c := range []byte(line) {
			if c == '#' && (i == 0 || line[i-1] == ' ') {
				break // a comment
			}
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			case '\t', '\r', '\n':
			default:
				if c < ' ' || c == 0x7f {
					return fmt.Errorf("line %d has a control character", number)
				}
			}
		}
		if depth > maxNest {
			return fmt.Errorf("line %d nests deeper than %d brackets", number, maxNest)
		}
		number++
	}
	return nil
}

// Problems are those found so far, at most maxFault with a line.
func (d *Document) Problems() []error { return d.problems }

// Add adds a problem whose line is not to be shown.
func (d *Document) Add(err error) { d.problems = append(d.problems, err) }

// check finds keys that t does not have, and what nobody here has a use for: anchors.
func (d *Document) check(node ast.Node, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch node.Type() {
	case ast.AnchorType, ast.AliasType, ast.MergeKeyType, ast.TagType:
		d.fault(node, "anchors, aliases and tags are not understood here; write the value out")
		return
	}
	if list, ok := node.(*ast.SequenceNode); ok && t.Kind() == reflect.Slice {
		for _, item := range list.Values {
			d.check(item, t.Elem())
		}
		return
	}
	known := fields(t)
	for _, pair := range Pairs(node) {
		key := pair.Key.GetToken().Value
		switch {
		case pair.Key.Type() == ast.MergeKeyType:
			d.fault(pair.Key, "merging is not understood here; write the keys out")
		case t.Kind() == reflect.Map:
			d.check(pair.Value, t.Elem())
		case t.Kind() != reflect.Struct:
		case known[key] == nil:
			d.fault(pair.Key, "unknown key %q%s", key, Suggest(key, slices.Sorted(maps.Keys(known))))
		default:
			d.check(pair.Value, known[key])
		}
	}
}

// fields are a struct's keys.
func fields(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	if t.Kind() != reflect.Struct {
		return known
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, inline, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if inline == "inline" {
			for k, v := range fields(f.Type) {
				known[k] = v
			}
			continue
		}
		known[name] = f.Type
	}
	return known
}

// Suggest is the name that key was probably meant to be, else all of them.
func Suggest(key string, names []string) string {
	best, distance := "", 1+max(2, len(key)/3)
	for _, name := range names {
		if d := min(Edits(key, name), Edits(strings.ReplaceAll(key, "_", "-"), name)); d < distance {
			best, distance = name, d
		}
	}
	if best != "" {
		return fmt.Sprintf(", did you mean %q?", best)
	}
	return "; known here: " + strings.Join(names, ", ")
}

// Edits is how many bytes must be changed, added or taken out to make b of a, which is
// one of the words that a file or a command may have; a long one counts as different.
func Edits(a, b string) int {
	if len(a) > 40 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// fault adds a problem with the line of node and a mark under it.
func (d *Document) fault(node ast.Node, format string, args ...any) {
	if len(d.problems) >= maxFault {
		return
	}
	text := fmt.Sprintf(format, args...)
	if node == nil || node.GetToken() == nil {
		d.problems = append(d.problems, fmt.Errorf("%s", text))
		return
	}
	at := node.GetToken().Position
	lines := strings.Split(string(d.text), "\n")
	if at.Line < 1 || at.Line > len(lines) {
		d.problems = append(d.problems, fmt.Errorf("line %d: %s", at.Line, text))
		return
	}
	line := strings.TrimRight(lines[at.Line-1], "\r")
	column := min(max(at.Column, 1), len(line)+1)
	from := max(column-60, 0) // of a long line, what is around
	shown := line[from:min(from+100, len(line))]
	d.problems = append(d.problems, fmt.Errorf("line %d: %s\n    %s\n    %s^", at.Line, text, shown, strings.Repeat(" ", max(column-1-from, 0))))
}

// Wrong adds a problem with the value at path: names of keys and places in lists.
func (d *Document) Wrong(path []any, format string, args ...any) {
	node, shown := d.root, d.root
	for _, step := range path {
		var next ast.Node
		switch step := step.(type) {
		case string:
			for _, pair := range Pairs(node) {
				if pair.Key.GetToken().Value == step {
					next, shown = pair.Value, pair.Key
				}
			}
		case int:
			if list, ok := node.(*ast.SequenceNode); ok && step < len(list.Values) {
				next = list.Values[step]
				shown = next
			}
		}
		if next == nil {
			break // the key is missing: its parent is shown
		}
		node = next
	}
	d.fault(shown, format, args...)
}

// Pairs are the keys of a mapping with their values, in order; none of anything else.
func Pairs(node ast.Node) []*ast.MappingValueNode {
	switch node := node.(type) {
	case *ast.MappingNode:
		return node.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{node}
	}
	return nil
}
