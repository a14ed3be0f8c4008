package abort

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

const (
	// heardFor is longer than any message lives, its ways included: what is forgotten
	// does not come again.
	heardFor = 2 * MaxLeft
	// heardMost bounds the messages remembered, 6 MB: 270 aborts a second for heardFor.
	heardMost = 1 << 15
	// activeMost bounds the messages that are told to who joins, the oldest out first.
	activeMost = 256
)

// Router is one node's part in carrying aborts to every node: each message is
// delivered and told on once, when it is seen first. It is safe for concurrent use.
type Router struct {
	origin string
	heard  *Seen

	mu     sync.Mutex // guards all below
	seq    uint64
	active []active // oldest first
}

type active struct {
	m     Message
	until time.Time
}

// NewRouter is the router of the node with this name. Its messages count from a
// random number, so that those of an earlier process are other ones.
func NewRouter(node string) *Router {
	return &Router{origin: name(node), heard: NewSeen(heardMost, heardFor), seq: rand.Uint64()}
}

// Message is a new one of this node, to be given to Route like any other.
func (r *Router) Message(id, attempt, owner string) Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	return Message{ID: id, Attempt: attempt, Owner: owner, Origin: r.origin, Seq: r.seq, Left: Life}
}

// Route says what to do with a message at time now. deliver: stop the request if it
// runs here, and remember the id, since its next delivery may come here. rebroadcast:
// tell all others. Both are false for a message heard before, an expired one and one
// without an id.
func (r *Router) Route(now time.Time, m Message) (deliver, rebroadcast bool) {
	if m.ID == "" || m.Left <= 0 {
		return false, false
	}
	key := m.Origin + "/" + strconv.FormatUint(m.Seq, 36)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard.Marked(now, key) {
		return false, false
	}
	r.heard.Mark(now, key)
	if len(r.active) == activeMost {
		r.active = r.active[1:]
	}
	r.active = append(r.active, active{m, now.Add(min(m.Left, MaxLeft))})
	return true, true
}

// Active returns the last messages that are not expired, with what is left of their
// lives: who joins or was cut off gets them in an exchange of state.
func (r *Router) Active(now time.Time) []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Message
	for _, a := range r.active {
		if m := a.m; a.until.After(now) {
			m.Left = a.until.Sub(now)
			out = append(out, m)
		}
	}
	return out
}
