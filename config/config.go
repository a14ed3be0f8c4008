// Package config fills a command's flags from where an operator may have set
// them: flags, then PENSTOCK_* environment variables, then a YAML file, then the
// defaults; and says of each value where it came from. The flag set is the
// schema: a flag is a variable and a file key under the same name.
package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"

	"penstock/policy/document"
)

// Origins says, by flag name, where each value came from: "flag",
// "PENSTOCK_SLO_TTFT", "penstock.yaml:3" or "default".
type Origins map[string]string

// Variable is the environment variable of a flag.
func Variable(flag string) string {
	return "PENSTOCK_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Find returns the file to read: the one named, else the first that exists of
// $PENSTOCK_CONFIG, ./penstock.yaml, the user's configuration directory and
// /etc/penstock/config.yaml; "" when there is none. A file that was named and
// does not exist is an error when it is read.
func Find(named string, lookup func(string) (string, bool)) string {
	if named != "" {
		return named
	}
	if path, ok := lookup("PENSTOCK_CONFIG"); ok && path != "" {
		return path
	}
	candidates := []string{"penstock.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "penstock", "config.yaml"))
	}
	for _, path := range append(candidates, "/etc/penstock/config.yaml") {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// Load fills every flag of flags that the command line did not set. file may be
// "". All problems that can be found are reported together, each with the value,
// its place and the fix.
func Load(flags *pflag.FlagSet, file string, lookup func(string) (string, bool)) (Origins, error) {
	fromFile, err := read(file, flags)
	if err != nil {
		return nil, err
	}
	origins := Origins{}
	var problems []error
	flags.VisitAll(func(f *pflag.Flag) {
		if NotASetting(f.Name) {
			return
		}
		origins[f.Name] = "default"
		variable := Variable(f.Name)
		switch value, inEnv := lookup(variable); {
		case f.Changed:
			origins[f.Name] = "flag"
		case inEnv:
			origins[f.Name] = variable
			if err := set(f, split(f, value)); err != nil {
				problems = append(problems, fmt.Errorf("%s=%q: %w. %s", variable, value, err, f.Usage))
			}
		default:
			if entry, ok := fromFile[f.Name]; ok {
				origins[f.Name] = entry.place
				if err := set(f, entry.values); err != nil {
					problems = append(problems, fmt.Errorf("%s: %s: %q: %w. %s", entry.place, f.Name, entry.values, err, f.Usage))
				}
			}
		}
	})
	return origins, errors.Join(problems...)
}

// NotASetting reports flags that act on one call only.
func NotASetting(name string) bool { return name == "help" || name == "config" || name == "version" }

func set(f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	if len(values) != 1 {
		return fmt.Errorf("takes one value, got %d", len(values))
	}
	return f.Value.Set(values[0])
}

// split gives an environment variable's values: a list is comma-separated.
func split(f *pflag.Flag, value string) []string {
	if _, list := f.Value.(pflag.SliceValue); list {
		return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
	}
	return []string{value}
}

type entry struct {
	values []string
	place  string // file:line
}

// read parses a file whose keys must be names of flags.
func read(path string, flags *pflag.FlagSet) (map[string]entry, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration file: %w. Name another with --config or $PENSTOCK_CONFIG", err)
	}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", path, yaml.FormatError(err, false, true))
	}
	entries := map[string]entry{}
	var problems []error
	for _, doc := range tree.Docs {
		for _, pair := range document.Pairs(doc.Body) {
			at := pair.Key.GetToken().Position
			place := fmt.Sprintf("%s:%d", path, at.Line)
			name := pair.Key.String()
			switch _, twice := entries[name]; {
			case twice:
				problems = append(problems, fmt.Errorf("%s: %q is set twice%s", place, name, caret(text, at.Line, at.Column)))
				continue
			case flags.Lookup(name) == nil || NotASetting(name):
				problems = append(problems, fmt.Errorf("%s: unknown key %q%s%s", place, name, caret(text, at.Line, at.Column), suggestion(name, flags)))
				continue
			}
			if _, ok := flags.Lookup(name).Value.(*Tiers); ok && pair.Value.Type() == ast.SequenceType {
				entries[name] = entry{[]string{pair.Value.String()}, place}
				continue
			}
			values, err := scalars(pair.Value)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %s: %w%s", place, name, err, caret(text, at.Line, at.Column)))
			}
			entries[name] = entry{values, place}
		}
		if doc.Body != nil && doc.Body.Type() != ast.MappingType && doc.Body.Type() != ast.MappingValueType && doc.Body.Type() != ast.CommentGroupType && doc.Body.Type() != ast.NullType {
			problems = append(problems, fmt.Errorf("%s: want lines of \"key: value\", found a %s. See: penstock config example", path, doc.Body.Type()))
		}
	}
	return entries, errors.Join(problems...)
}

func scalars(node ast.Node) ([]string, error) {
	if list, ok := node.(*ast.SequenceNode); ok {
		var values []string
		for _, item := range list.Values {
			one, err := scalars(item)
			if err != nil {
				return nil, err
			}
			values = append(values, one...)
		}
		return values, nil
	}
	if scalar, ok := node.(ast.ScalarNode); ok {
		return []string{fmt.Sprint(scalar.GetValue())}, nil
	}
	return nil, errors.New("want a value or a list of values")
}

// caret shows the line with a mark under the column, both counted from 1.
func caret(text []byte, line, column int) string {
	lines := strings.Split(string(text), "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	return fmt.Sprintf("\n    %s\n    %s^", lines[line-1], strings.Repeat(" ", max(0, column-1)))
}

func suggestion(name string, flags *pflag.FlagSet) string {
	if near := Nearest(name, flags); near != "" {
		return fmt.Sprintf("\n    did you mean %q?", near)
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !NotASetting(f.Name) {
			names = append(names, f.Name)
		}
	})
	slices.Sort(names)
	return "\n    known keys: " + strings.Join(names, ", ")
}

// Nearest is the flag that name was most likely meant to be, or "".
func Nearest(name string, flags *pflag.FlagSet) string {
	best, distance := "", 4
	flags.VisitAll(func(f *pflag.Flag) {
		if d := document.Edits(strings.ReplaceAll(name, "_", "-"), f.Name); d < distance && !NotASetting(f.Name) {
			best, distance = f.Name, d
		}
	})
	return best
}
