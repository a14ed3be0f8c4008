package room

import (
	"time"

	"penstock/lane"
)

const (
	// LanePause is how long a head waits whose lane has as many running as it may. One
	// head of a lane is out at a time in memory, its width in the broker.
	LanePause = 100 * time.Millisecond
	// mostParked bounds the heads, one of a lane, that stay until one of their lane ends:
	// each holds a delivery.
	mostParked = 64
)

// lanes counts who holds a place in the ledger, by lane.
type lanes struct {
	running map[lane.Key]int           // without zeros
	parked  map[lane.Key]chan struct{} // closed when one of the lane ends; at most mostParked
}

func newLanes() lanes {
	return lanes{running: map[lane.Key]int{}, parked: map[lane.Key]chan struct{}{}}
}

// full reports whether nothing more of a lane may start: what is held counts.
func (r *Room) full(k lane.Key) bool {
	limit := r.cfg.Limit(k)
	return limit > 0 && r.lanes.running[k]+r.of(k) >= limit
}

// Ended gives back what a start took of its lane, and fills the room.
func (r *Room) Ended(now time.Time, k lane.Key) {
	if r.lanes.running[k]--; r.lanes.running[k] <= 0 {
		delete(r.lanes.running, k)
	}
	if ended := r.lanes.parked[k]; ended != nil {
		delete(r.lanes.parked, k)
		close(ended)
	}
	r.Fill(now)
}

// Park is for a head whose lane is full: the channel closes when one of the lane ends,
// or is closed if the lane is not full any more. nil: another of the lane waits
// already, or many of other lanes. Who waits no longer says so with Unpark.
func (r *Room) Park(k lane.Key) chan struct{} {
	ended := make(chan struct{})
	switch {
	case !r.full(k):
		close(ended)
	case r.lanes.parked[k] != nil || len(r.lanes.parked) >= mostParked:
		return nil
	default:
		r.lanes.parked[k] = ended
	}
	return ended
}

// Unpark gives up a place of Park.
func (r *Room) Unpark(k lane.Key, ended chan struct{}) {
	if r.lanes.parked[k] == ended {
		delete(r.lanes.parked, k)
	}
}
