package sim

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Table prints rows for people.
func Table(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "workload\tprofile\tload\tpolicy\tgoodput/s\t(spread)\tattained\ttokens/s\tTTFT p50\tp99\tgap p99\tpreempted/1k\trecomputed\trefused\tlost\tby prompt quartile\tsetting\t")
	for _, r := range rows {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%g\t%s\t%.2f\t%.2f-%.2f\t%.3f\t%.0f\t%.2f s\t%.2f s\t%.2f s\t%.1f\t%.4f\t%.3f\t%.3f\t%.2f %.2f %.2f %.2f\t%s\t\n",
			r.Workload, r.Profile, r.Load, r.Policy, r.Goodput, r.Spread[0], r.Spread[1], r.Attainment, r.TokenGoodput, r.TTFTp50, r.TTFTp99, r.GapP99,
			r.Preempted, r.Recomputed, r.Refused, r.Lost, r.Quartiles[0], r.Quartiles[1], r.Quartiles[2], r.Quartiles[3], r.Setting)
	}
	return t.Flush()
}
