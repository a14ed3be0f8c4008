package agent

import (
	"slices"

	"penstock/lane"
	"penstock/scheduler"
)

// answer is what a delivered head gets: the verdict, and when it is Start the
// place in the ledger that was taken with it.
type answer struct {
	scheduler.Verdict
	slot scheduler.Slot
}

// head is a delivery that waits for its answer in the room.
type head struct {
	id     string
	lane   lane.Key
	hold   scheduler.Verdict // the verdict that held it; its After counts when it leaves unstarted
	answer chan answer       // of size 1; written once, when the head leaves the room
}

// room holds the few delivered heads that wait for capacity about to come free.
// It is not safe for concurrent use: core's mutex guards it. heads and reqs run in
// parallel because Pick reads the requests alone.
type room struct {
	size, perLane int
	heads         []*head
	reqs          []scheduler.Request
}

func newRoom(size, perLane int) room {
	return room{
		size: size, perLane: perLane,
		heads: make([]*head, 0, size+1), reqs: make([]scheduler.Request, 0, size+1),
	}
}

// of is how many heads of a lane are in it.
func (r *room) of(k lane.Key) (n int) {
	for _, h := range r.heads {
		if h.lane == k {
			n++
		}
	}
	return n
}

// free reports whether a head of k may stay: perLane of one lane.
func (r *room) free(k lane.Key) bool { return r.of(k) < r.perLane }

// full reports whether one has to leave.
func (r *room) full() bool { return len(r.heads) > r.size }

func (r *room) add(h *head, req *scheduler.Request) {
	r.heads = append(r.heads, h)
	r.reqs = append(r.reqs, *req)
}

// find returns the place of h, or -1 once it has left.
func (r *room) find(h *head) int { return slices.Index(r.heads, h) }

// leave takes head i out and answers it.
func (r *room) leave(i int, a answer) {
	h := r.heads[i]
	r.heads = slices.Delete(r.heads, i, i+1)
	r.reqs = slices.Delete(r.reqs, i, i+1)
	h.answer <- a
}
