package registry

import (
	"cmp"
	"slices"
	"time"

	"penstock/lane"
)

// MaxLongest is how many lanes one call of Longest reads at most.
const MaxLongest = 1000

// LaneBacklog is what waits and runs in one lane.
type LaneBacklog struct {
	Lane     lane.Key
	Requests int // that wait: opened, not started
	Tokens   int // of those; expected, prompt and output
	Oldest   time.Duration
	Running  int  // started, not over
	Width    int  // requests of it that run at once at most; 0 = no such bound
	Held     bool // all that waits stands behind one of the lane's own that runs: an engine that is free gets none of it
}

// SortLongest puts the lane with most waiting first, then the one that waits longest.
func SortLongest(lanes []LaneBacklog) {
	slices.SortFunc(lanes, func(a, b LaneBacklog) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(b.Oldest, a.Oldest), cmp.Compare(a.Lane.String(), b.Lane.String()))
	})
}
