// Package show writes what the commands print: aligned tables, JSON, durations for people.
package show

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"penstock/cmd/penstock/exit"
)

// Raw is a message with the field names of its .proto, zeros too.
func Raw(m proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
}

// CheckOutput is a usage error where output, of -o, is neither text nor json.
func CheckOutput(output string) error {
	if output != "text" && output != "json" {
		return exit.Usagef("-o %q: want text or json", output)
	}
	return nil
}

// JSON writes v indented, as -o json does.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Plural is n with its noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Table is aligned columns under head; the caller adds each Row and flushes it.
func Table(w io.Writer, head ...any) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	Row(t, head...)
	return t
}

// Row adds a line to a Table.
func Row(t *tabwriter.Writer, cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = t.Write([]byte{'\t'})
		}
		_, _ = fmt.Fprint(t, cell)
	}
	_, _ = t.Write([]byte{'\n'})
}

// Ago is a duration for people: two digits are enough. "-" is none.
func Ago(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d == 0:
		return "-"
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
