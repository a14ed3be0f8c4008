package doctor

import (
	"fmt"
	"io"
	"strings"
)

var colours = map[Status]string{OK: "\x1b[32m", Warn: "\x1b[33m", Fail: "\x1b[31m"}

// Write prints checks for people, a group under its name, then one line of sums.
func Write(w io.Writer, checks []Check, colour bool) error {
	var b strings.Builder
	group := ""
	told := map[string]string{} // fix -> the check that has it already
	for _, c := range checks {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(&b, "%s\n", group)
		}
		mark := fmt.Sprintf("%-4s", strings.ToUpper(string(c.Status)))
		if colour {
			mark = colours[c.Status] + mark + "\x1b[0m"
		}
		fmt.Fprintf(&b, "  %s  %-15s %s\n", mark, c.Name, c.Evidence)
		if before, again := told[c.Fix]; again {
			fmt.Fprintf(&b, "        fix: as for %s\n", before)
			continue
		}
		for line := range strings.Lines(c.Fix) {
			fmt.Fprintf(&b, "        fix: %s\n", strings.TrimSpace(line))
		}
		if c.Fix != "" {
			told[c.Fix] = c.Name
		}
	}
	fmt.Fprintf(&b, "%d ok, %d warnings, %d failed\n", Count(checks, OK), Count(checks, Warn), Count(checks, Fail))
	_, err := io.WriteString(w, b.String())
	return err
}
