package cost

import (
	"math"
	"slices"
)

// Lengths is a sliding window of output lengths, kept in order of arrival and
// sorted. Adding moves at most the window's bytes: 2 KiB at 512.
type Lengths struct {
	latest, sorted []uint32
	next, filled   int
	used           uint64
}

// NewLengths makes an empty window over the latest lengths, at least one.
func NewLengths(window int) Lengths {
	return Lengths{latest: make([]uint32, window), sorted: make([]uint32, 0, window)}
}

// Len is how many lengths the window holds.
func (l *Lengths) Len() int { return l.filled }

// Add takes in one length, not negative.
func (l *Lengths) Add(n int) {
	v := uint32(min(n, math.MaxUint32))
	if l.filled == len(l.latest) {
		i, _ := slices.BinarySearch(l.sorted, l.latest[l.next])
		l.sorted = slices.Delete(l.sorted, i, i+1)
	} else {
		l.filled++
	}
	i, _ := slices.BinarySearch(l.sorted, v)
	l.sorted = slices.Insert(l.sorted, i, v)
	l.latest[l.next] = v
	l.next = (l.next + 1) % len(l.latest)
}

// Quantile is the least length that at least q of the window do not pass. The
// window must not be empty.
func (l *Lengths) Quantile(q float64) int {
	k := int(math.Ceil(q*float64(l.filled))) - 1
	return int(l.sorted[min(max(k, 0), l.filled-1)])
}
