package scheduler

import "time"

const (
	seenFor    = 6 * time.Second
	heldFor    = 500 * time.Millisecond // how long the ready room keeps a head
	minPause   = 50 * time.Millisecond
	maxPause   = 5 * time.Second
	minStarts  = 4.0  // starts per second that a pause reckons with at least: 25 heads come back within the longest pause
	maxStarts  = 50.0 // and at most: 256 heads then come back about 200 times a second
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
	list [256]head
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

// note records that a head was seen now and returns its entry and its rank,
// from 1, by age among those seen in the last 6 s.
func (h *heads) note(t, opened time.Duration, hash uint64) (*head, int) {
	rank, own, oldest := 1, -1, 0
	for i := 0; i < h.n; {
		e := &h.list[i]
		if t-e.seen > seenFor {
			h.n--
			*e = h.list[h.n]
			continue
		}
		switch {
		case e.hash == hash:
			own = i
		case e.opened < opened || (e.opened == opened && e.hash < hash):
			rank++
		}
		if e.seen < h.list[oldest].seen {
			oldest = i
		}
		i++
	}
	if own < 0 {
		if own = h.n; h.n == len(h.list) {
			own = oldest
		} else {
			h.n++
		}
		h.list[own] = head{hash: hash}
	}
	e := &h.list[own]
	e.opened, e.seen = opened, t
	return e, rank
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
