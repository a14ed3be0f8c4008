package scheduler

import "time"

const (
	seenFor    = 6 * time.Second
	heldFor    = 500 * time.Millisecond // how long the ready room keeps a head
	minPause   = 50 * time.Millisecond
	maxPause   = 5 * time.Second
	minStarts  = 4.0  // starts per second that a pause reckons with at least: 25 heads come back within the longest pause
	maxStarts  = 50.0 // and at most: 128 heads then come back about 280 times a second together
	maxPasses  = 3    // times one head is passed on to a peer
	peerFresh  = time.Second
	statePause = time.Second // blind, stuck, asleep, draining
	startPause = 200 * time.Millisecond
)

// head is a request that was told "not now".
type head struct {
	hash   uint64
	opened time.Duration
	seen   time.Duration
	slo    time.Duration // its first token is in time until here
	held   bool
	passes uint8
}

// heads remembers who waits, by last sight. When it is full the one not seen for
// longest makes room: ranks are then too small, and the longest pause bounds them.
type heads struct {
	list [128]head
	n    int
}

func (h *heads) remove(hash uint64) {
	for i := range h.list[:h.n] {
		if h.list[i].hash == hash {
			h.n--
			h.list[i] = h.list[h.n]
			return
		}
	}
}

// note records that head r was seen now. Its rank, from 1, is its place in the
// order of Pick among those seen in the last 6 s; ahead says whether one in time
// is before it. prediction is how long a first token takes now.
func (h *heads) note(t, prediction time.Duration, r head) (e *head, rank int, ahead bool) {
	late := t+prediction > r.slo
	own, oldest := -1, 0
	rank = 1
	for i := 0; i < h.n; {
		e := &h.list[i]
		if t-e.seen > seenFor {
			h.n--
			*e = h.list[h.n]
			continue
		}
		if eLate := t+prediction > e.slo; e.hash == r.hash {
			own = i
		} else if eLate == late && (e.opened < r.opened || (e.opened == r.opened && e.hash < r.hash)) || late && !eLate {
			rank++
			ahead = ahead || !eLate
		}
		if e.seen < h.list[oldest].seen {
			oldest = i
		}
		i++
	}
	switch {
	case own >= 0:
		r.passes = h.list[own].passes
	case h.n < len(h.list):
		own = h.n
		h.n++
	default:
		own = oldest
	}
	r.seen = t
	h.list[own] = r
	return &h.list[own], rank, ahead
}

// inTime reports whether another head waits in the ready room that can still
// have its first token in time.
func (h *heads) inTime(t, prediction time.Duration, hash uint64) bool {
	for i := range h.list[:h.n] {
		e := &h.list[i]
		if e.held && e.hash != hash && t-e.seen <= heldFor && t+prediction <= e.slo {
			return true
		}
	}
	return false
}

// mix spreads a hash and a number over 64 bits (splitmix64's finaliser).
func mix(hash, n uint64) uint64 {
	x := hash + (n+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// draw is a number in 0..1 from a hash and a number.
func draw(hash, n uint64) float64 { return float64(mix(hash, n)>>11) / (1 << 53) }
