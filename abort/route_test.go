package abort

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestRoute(t *testing.T) {
	begin := time.Unix(1000, 0)
	m := Message{ID: "x", Origin: "g", Seq: 1, Left: Life}
	with := func(set func(*Message)) Message {
		c := m
		set(&c)
		return c
	}
	for _, tt := range []struct {
		name  string
		after time.Duration
		m     Message
		want  bool
	}{
		{"at first sight", 0, m, true},
		{"again", 0, m, false},
		{"a replay when it has long expired", heardFor - time.Millisecond, m, false},
		{"by another way, later", time.Second, with(func(m *Message) { m.Left = time.Second }), false},
		{"said again by its origin", time.Second, with(func(m *Message) { m.Seq = 2 }), true},
		{"said by another node", time.Second, with(func(m *Message) { m.Origin = "h" }), true},
		{"expired", 0, with(func(m *Message) { m.Seq, m.Left = 3, 0 }), false},
		{"no id", 0, with(func(m *Message) { m.Seq, m.ID = 4, "" }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRouter("n")
			if tt.name != "at first sight" {
				r.Route(begin, m)
			}
			if deliver, rebroadcast := r.Route(begin.Add(tt.after), tt.m); deliver != tt.want || rebroadcast != tt.want {
				t.Errorf("Route = %v, %v; want %v", deliver, rebroadcast, tt.want)
			}
		})
	}
}

func TestActive(t *testing.T) {
	begin := time.Unix(1000, 0)
	r := NewRouter("n")
	for i := range 300 {
		r.Route(begin, Message{ID: fmt.Sprint(i), Seq: uint64(i), Left: time.Duration(10+i%2*10) * time.Second})
	}
	if got := r.Active(begin); len(got) != activeMost || got[0].ID != "44" {
		t.Errorf("%d active, the first %q; want the last %d", len(got), got[0].ID, activeMost)
	}
	got := r.Active(begin.Add(15 * time.Second))
	if len(got) != activeMost/2 || got[0].ID != "45" || got[0].Left != 5*time.Second {
		t.Errorf("%d active after 15 s, the first %+v; want half, with 5 s left", len(got), got[0])
	}
	if got := r.Active(begin.Add(20 * time.Second)); got != nil {
		t.Errorf("%d active after all expired", len(got))
	}
}

func TestRouterMessages(t *testing.T) {
	now := time.Unix(1000, 0)
	r, again := NewRouter("gateway-1"), NewRouter("gateway-1")
	other := NewRouter("n")
	for _, m := range []Message{r.Message("x", "1", "n"), r.Message("x", "1", "n"), again.Message("x", "1", "n")} {
		if m.Origin != "gateway-1" || m.Left != Life {
			t.Errorf("message %+v, want one of gateway-1 with %s left", m, Life)
		}
		if deliver, _ := other.Route(now, m); !deliver {
			t.Errorf("%+v counts as a repetition", m)
		}
	}
}

// node is an agent as far as aborts go.
type node struct {
	router  *Router
	running *Running
	aborted *Seen
	heard   map[string]int // deliveries by id
}

func newNode(i int) *node {
	return &node{NewRouter(fmt.Sprint("node-", i)), NewRunning(), NewSeen(1000, time.Hour), map[string]int{}}
}

// flood is 20 nodes and a bad network in ticks of 50 ms: of all packets a fifth is
// lost, a tenth comes twice, and each takes up to four ticks. What a node is to tell
// on it sends to 3 random others in each of 4 ticks.
type flood struct {
	t     *testing.T
	rng   *rand.Rand
	keys  Keys
	nodes []*node
	now   time.Time
	air   map[int][]packet // by the tick of arrival
	tick  int
	sent  int
	cut   func(a, b int) bool
}

type packet struct {
	to   int
	data []byte
}

func newFlood(t *testing.T, seed uint64) *flood {
	f := &flood{t: t, rng: rand.New(rand.NewPCG(seed, 1)), keys: keysOf(t, "key"), now: time.Unix(1000, 0), air: map[int][]packet{}, cut: func(int, int) bool { return false }}
	for i := range 20 {
		f.nodes = append(f.nodes, newNode(i))
	}
	return f
}

// take is what an agent does with a message, however it came.
func (f *flood) take(at int, m Message) {
	n := f.nodes[at]
	deliver, rebroadcast := n.router.Route(f.now, m)
	if deliver {
		n.heard[m.ID]++
		n.aborted.Mark(f.now, m.ID)
		n.running.Cancel(m.ID, m.Attempt)
	}
	if !rebroadcast {
		return
	}
	data := bytesOf(f.t, m, f.keys)
	for i := range 12 {
		f.send(at, f.rng.IntN(len(f.nodes)), f.tick+1+i/3, data)
	}
}

func (f *flood) send(from, to, tick int, data []byte) {
	f.sent++
	copies := 1
	switch chance := f.rng.IntN(100); {
	case f.cut(from, to) || chance < 20:
		return
	case chance < 30:
		copies = 2
	}
	for range copies {
		at := tick + f.rng.IntN(4)
		f.air[at] = append(f.air[at], packet{to, data})
	}
}

func (f *flood) ticks(n int) {
	for range n {
		f.tick++
		f.now = f.now.Add(50 * time.Millisecond)
		for _, p := range f.air[f.tick] {
			m, err := Parse(p.data, f.keys)
			if err != nil {
				f.t.Fatal(err)
			}
			f.take(p.to, m)
		}
		delete(f.air, f.tick)
	}
}

// exchange is one round of exchanging state: each node with the next.
func (f *flood) exchange() {
	for i := range f.nodes {
		to := (i + 1) % len(f.nodes)
		if f.cut(i, to) {
			continue
		}
		for _, m := range f.nodes[i].router.Active(f.now) {
			f.take(to, m)
		}
	}
}

func (f *flood) missing(id string) (missing []int) {
	for i, n := range f.nodes {
		if n.heard[id] > 1 {
			f.t.Errorf("node %d got %s %d times", i, id, n.heard[id])
		}
		if n.heard[id] == 0 {
			missing = append(missing, i)
		}
	}
	return missing
}

// TestFlood: aborts reach nearly every node through a network that loses, doubles
// and reorders, and all of them with one exchange of state; each node once.
func TestFlood(t *testing.T) {
	missed := 0
	for seed := range uint64(4) {
		f := newFlood(t, seed)
		const aborts = 50
		for i := range aborts {
			origin := f.rng.IntN(len(f.nodes))
			f.take(origin, f.nodes[origin].router.Message(fmt.Sprint(i), "", ""))
			f.ticks(f.rng.IntN(4))
		}
		f.ticks(60)
		if len(f.air) > 0 {
			t.Errorf("seed %d: packets still fly 3 s later", seed)
		}
		if most := aborts * len(f.nodes) * 12; f.sent > most {
			t.Errorf("seed %d: %d packets, at most %d are allowed", seed, f.sent, most)
		}
		for i := range aborts {
			missed += len(f.missing(fmt.Sprint(i)))
		}
		f.exchange()
		f.ticks(60)
		for i := range aborts {
			if left := f.missing(fmt.Sprint(i)); left != nil {
				t.Errorf("seed %d: nodes %v never heard of %d", seed, left, i)
			}
		}
	}
	t.Logf("%d of 4000 deliveries were missed by the flood alone", missed)
	if missed > 8 {
		t.Errorf("%d of 4000 deliveries were missed by the flood alone, want at most 8", missed)
	}
}

// TestPartitionHealed: the other side hears of what is still alive, and nothing of
// what expired meanwhile.
func TestPartitionHealed(t *testing.T) {
	f := newFlood(t, 1)
	f.cut = func(a, b int) bool { return a%2 != b%2 }
	f.take(0, f.nodes[0].router.Message("old", "", ""))
	f.ticks(int(Life/(50*time.Millisecond)) - 100)
	f.take(0, f.nodes[0].router.Message("young", "", ""))
	f.ticks(100 + 40) // a life is longer by the time on the way
	f.cut = func(int, int) bool { return false }
	f.exchange()
	f.ticks(60)
	for id, want := range map[string]int{"old": 10, "young": 0} {
		if got := f.missing(id); len(got) != want {
			t.Errorf("%s: nodes %v did not hear of it, want %d of them", id, got, want)
		}
	}
}

// TestAbortFindsItsRequest: whoever runs it, wherever the origin believes it to be,
// and also where it is delivered only later.
func TestAbortFindsItsRequest(t *testing.T) {
	for _, tt := range []struct {
		name           string
		owner, attempt string // of the message
		runs           string // attempt of x that runs on node 7
		canceled       bool
	}{
		{"owner known", "node-7", "1", "1", true},
		{"owner not known yet", "", "", "1", true},
		{"owner believed elsewhere", "node-3", "1", "1", true},
		{"another attempt runs", "node-7", "2", "1", false},
		{"nothing runs", "node-7", "1", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFlood(t, 1)
			owner := f.nodes[7]
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.runs != "" {
				owner.running.Add("x", tt.runs, cancel)
			}
			owner.running.Add("y", "1", func(error) { t.Error("a foreign request was cancelled") })
			f.take(0, f.nodes[0].router.Message("x", tt.attempt, tt.owner))
			f.ticks(60)
			if got := ctx.Err() != nil; got != tt.canceled {
				t.Errorf("cancelled: %v, want %v", got, tt.canceled)
			}
			if owner.running.Has("x") {
				owner.running.Remove("x", tt.runs)
			}
			f.nodes[7] = newNode(7) // its process starts again, and knows nothing until it joins
			f.exchange()
			for i, n := range f.nodes {
				if !n.aborted.Marked(f.now, "x") || n.aborted.Marked(f.now, "y") {
					t.Errorf("a later delivery to node %d is not dropped, or a foreign one is", i)
				}
			}
		})
	}
}
