package rocketmq

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"penstock/lane"
)

// stale is how old a directory may be before it does not say any more which lanes wait.
const stale = 10 * time.Second

// takers is how many nodes subscribe a lane when one cannot subscribe all.
const takers = 3

// directory is what the fleet's lanes are and which of them this node takes. It is
// safe for concurrent use.
type directory struct {
	secret []byte
	kick   chan struct{} // size 1: the set may have changed

	mu         sync.Mutex // guards below
	match      func(lane.Key) bool
	lanes      map[lane.Key]*known
	generation uint64            // of match and lanes
	waiting    map[lane.Key]bool // never changed, only replaced
	told       time.Time
}

type known struct {
	names  []string  // one per shard
	listed time.Time // when the directory last had it
	gone   time.Time // since when it lacks it; zero = it has it
}

func newDirectory(secret []byte) *directory {
	return &directory{secret: secret, kick: make(chan struct{}, 1), lanes: map[lane.Key]*known{}}
}

func (d *directory) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// accept sets which lanes are taken, nil for none.
func (d *directory) accept(match func(lane.Key) bool) {
	d.mu.Lock()
	d.match = match
	d.generation++
	d.mu.Unlock()
	d.wake()
}

func (d *directory) accepts(k lane.Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.match != nil && d.match(k)
}

// set takes the whole directory as of now.
func (d *directory) set(now time.Time, entries []lane.Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	d.told, d.waiting = now, map[lane.Key]bool{}
	for _, e := range entries {
		if e.Waiting {
			d.waiting[e.Key] = true
		}
		k := d.lanes[e.Key]
		if k == nil {
			k = new(known)
			d.lanes[e.Key] = k
			changed = true
		}
		k.listed, k.gone = now, time.Time{}
		for shard := len(k.names); shard < min(max(e.Width, 1), lane.MaxWidth); shard++ {
			k.names = append(k.names, lane.Name(d.secret, e.Key, shard))
			changed = true
		} // a lane that became narrower keeps its shards: they may hold messages
	}
	for key, k := range d.lanes {
		switch {
		case k.listed.Equal(now):
		case k.gone.IsZero():
			k.gone = now
		case now.Sub(k.gone) >= lanesKept:
			delete(d.lanes, key)
			changed = true
		}
	}
	if changed {
		d.generation++
		d.wake()
	}
}

// version changes with what wanted answers, as far as it lies here.
func (d *directory) version() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.generation
}

// waits is the lanes with something waiting; known is false when the directory has not
// been told for a while.
func (d *directory) waits(now time.Time) (waiting map[lane.Key]bool, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting, now.Sub(d.told) < stale
}

// set of LiteTopics and the lanes they belong to.
type topics map[string]lane.Key

// wanted is what to subscribe: all shards of the accepted lanes; of more than quota
// (0 = no bound) those lanes this node is among the takers of, then as many as fit,
// in the order of a hash so that it is the same ones every time. left is how many
// lanes did not fit.
func (d *directory) wanted(quota int, node string, nodes []string) (want topics, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	want = make(topics, len(d.lanes))
	keys := make([]lane.Key, 0, len(d.lanes))
	total := 0
	for key, k := range d.lanes {
		if d.match != nil && d.match(key) {
			keys = append(keys, key)
			total += len(k.names)
		}
	}
	if quota > 0 && total > quota {
		if len(nodes) > 0 {
			keys = slices.DeleteFunc(keys, func(k lane.Key) bool { return !takes(d.lanes[k].names[0], node, nodes) })
		}
		order := make(map[lane.Key]uint64, len(keys))
		for _, key := range keys {
			order[key] = score(d.lanes[key].names[0], node)
		}
		slices.SortFunc(keys, func(a, b lane.Key) int {
			return cmp.Or(cmp.Compare(order[a], order[b]), cmp.Compare(d.lanes[a].names[0], d.lanes[b].names[0]))
		})
	}
	for _, key := range keys {
		names := d.lanes[key].names
		if quota > 0 && len(want)+len(names) > quota {
			left++
			continue
		}
		for _, name := range names {
			want[name] = key
		}
	}
	return want, left
}

// takes reports whether node is among the takers highest of nodes for a lane.
func takes(name, node string, nodes []string) bool {
	own := score(name, node)
	above := 0
	for _, other := range nodes {
		if s := score(name, other); other != node && (s > own || s == own && other > node) {
			above++
		}
	}
	return above < takers
}

func score(name, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(name))
	// FNV's high bits hardly move with the last bytes: mix them once more.
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], h.Sum64())
	h.Reset()
	_, _ = h.Write(b[:])
	return h.Sum64()
}

// difference is what to add to have and what to take from it, sorted.
func difference(have map[string]*subscription, want topics) (add, remove []string) {
	for name := range want {
		if _, ok := have[name]; !ok {
			add = append(add, name)
		}
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			remove = append(remove, name)
		}
	}
	slices.Sort(add)
	slices.Sort(remove)
	return add, remove
}

// whole is the lanes of which all wanted shards are subscribed.
func whole(have map[string]*subscription, want topics) []lane.Key {
	complete := map[lane.Key]bool{}
	for name, key := range want {
		_, ok := have[name]
		was, known := complete[key]
		complete[key] = ok && (was || !known)
	}
	maps.DeleteFunc(complete, func(_ lane.Key, ok bool) bool { return !ok })
	return slices.Collect(maps.Keys(complete))
}
