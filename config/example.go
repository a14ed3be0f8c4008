package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Example is a file with every key, commented out, at its default.
func Example(flags *pflag.FlagSet) string {
	var b strings.Builder
	b.WriteString("# penstock.yaml: every key is also a flag and a PENSTOCK_* variable; those win over this file.\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if NotASetting(f.Name) {
			return
		}
		value := f.DefValue
		if value == "" {
			value = `""`
		}
		fmt.Fprintf(&b, "\n# %s\n#%s: %s\n", f.Usage, f.Name, value)
	})
	return b.String()
}

// Show is the merged configuration, one "key: value" a line, and with origin
// where each value came from.
func Show(flags *pflag.FlagSet, origins Origins, withOrigin bool) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if NotASetting(f.Name) {
			return
		}
		line := fmt.Sprintf("%s: %s", f.Name, f.Value)
		if withOrigin {
			line = fmt.Sprintf("%-50s # %s", line, origins[f.Name])
		}
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
	})
	return b.String()
}
