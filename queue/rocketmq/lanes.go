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

// takers is how many nodes subscribe a lane when one cannot subscribe all.
const takers = 3

// directory is what the fleet's lanes are and which of them this node takes. It is
// safe for concurrent use.
type directory struct {
	secret []byte
	kick   chan struct{} // size 1: the set may have changed

	mu    sync.Mutex // guards below
	match func(lane.Key) bool
	lanes map[lane.Key]*known
}

type known struct {
	names []string  // one per shard
	gone  time.Time // since when the directory lacks it; zero = it has it
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
	seen := make(map[lane.Key]bool, len(entries))
	for _, e := range entries {
		seen[e.Key] = true
		k := d.lanes[e.Key]
		if k == nil {
			k = new(known)
			d.lanes[e.Key] = k
			changed = true
		}
		k.gone = time.Time{}
		for shard := len(k.names); shard < min(max(e.Width, 1), lane.MaxWidth); shard++ {
			k.names = append(k.names, lane.Name(d.secret, e.Key, shard))
			changed = true
		} // a lane that became narrower keeps its shards: they may hold messages
	}
	for key, k := range d.lanes {
		switch {
		case seen[key]:
		case k.gone.IsZero():
			k.gone = now
		case now.Sub(k.gone) >= lanesKept:
			delete(d.lanes, key)
			changed = true
		}
	}
	if changed {
		d.wake()
	}
}

// set of LiteTopics and the lanes they belong to.
type topics map[string]lane.Key

// wanted is what to subscribe: all shards of the accepted lanes; of more than quota
// (0 = no bound) those lanes this node is among the takers of, then as many as fit,
// in the order of a hash so that it is the same ones every time. left is how many
// lanes did not fit.
func (d *directory) wanted(quota int, node string, nodes func() []string) (want topics, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	want = topics{}
	var keys []lane.Key
	total := 0
	for key, k := range d.lanes {
		if d.match != nil && d.match(key) {
			keys = append(keys, key)
			total += len(k.names)
		}
	}
	if quota > 0 && total > quota {
		if nodes != nil {
			all := nodes()
			keys = slices.DeleteFunc(keys, func(k lane.Key) bool { return !takes(d.lanes[k].names[0], node, all) })
		}
		slices.SortFunc(keys, func(a, b lane.Key) int {
			return cmp.Or(cmp.Compare(score(d.lanes[a].names[0], node), score(d.lanes[b].names[0], node)), cmp.Compare(d.lanes[a].names[0], d.lanes[b].names[0]))
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
