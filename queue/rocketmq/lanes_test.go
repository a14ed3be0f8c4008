package rocketmq

import (
	"fmt"
	"testing"
	"time"

	"penstock/lane"
)

func key(i int) lane.Key { return lane.Key{Tier: "t", Tenant: fmt.Sprint(i)} }

func entries(n, width int) (all []lane.Entry) {
	for i := range n {
		all = append(all, lane.Entry{Key: key(i), Width: width})
	}
	return all
}

func all(lane.Key) bool { return true }

func TestWanted(t *testing.T) {
	nodes := []string{"a", "b", "c", "d", "e", "f"}
	for _, tc := range []struct {
		name        string
		lanes       int
		width       int
		match       func(lane.Key) bool
		quota       int
		nodes       []string
		topics      int
		left        int
		atMost      int // instead of topics
		description string
	}{
		{name: "all shards", lanes: 3, width: 4, match: all, topics: 12},
		{name: "nothing accepted", lanes: 3, width: 4},
		{name: "only what is accepted", lanes: 3, width: 4, match: func(k lane.Key) bool { return k == key(1) }, topics: 4},
		{name: "width 0 is one shard", lanes: 2, match: all, topics: 2},
		{name: "within the quota", lanes: 3, width: 4, match: all, quota: 12, nodes: nodes, topics: 12},
		{name: "beyond, alone", lanes: 3, width: 4, match: all, quota: 11, topics: 8, left: 1},
		{name: "beyond, shared", lanes: 100, width: 1, match: all, quota: 90, nodes: nodes, atMost: 65},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDirectory(nil)
			d.accept(tc.match)
			d.set(time.Now(), entries(tc.lanes, tc.width))
			want, left := d.wanted(tc.quota, "a", tc.nodes)
			if tc.atMost > 0 {
				if len(want) > tc.atMost || len(want) < tc.lanes/3 || left != 0 {
					t.Errorf("%d topics, %d lanes left, want about half of %d", len(want), left, tc.lanes)
				}
			} else if len(want) != tc.topics || left != tc.left {
				t.Errorf("%d topics, %d lanes left, want %d and %d", len(want), left, tc.topics, tc.left)
			}
			if again, _ := d.wanted(tc.quota, "a", tc.nodes); len(again) != len(want) {
				t.Error("another set the second time")
			}
		})
	}
}

// TestTakers: every lane has three takers, evenly, and a node that goes moves only
// its own lanes.
func TestTakers(t *testing.T) {
	nodes := []string{"a", "b", "c", "d", "e", "f"}
	by := map[string]int{}
	for i := range 3000 {
		name := lane.Name(nil, key(i), 0)
		var took []string
		for _, n := range nodes {
			if takes(name, n, nodes) {
				took = append(took, n)
				by[n]++
			}
		}
		if len(took) != takers {
			t.Fatalf("lane %d is taken by %v, want %d", i, took, takers)
		}
		for _, n := range took {
			if n != "f" && !takes(name, n, nodes[:5]) {
				t.Fatalf("lane %d: %s gave it up when f went", i, n)
			}
		}
	}
	for n, lanes := range by {
		if lanes < 1300 || lanes > 1700 {
			t.Errorf("%s takes %d of 3000 lanes, want about 1500", n, lanes)
		}
	}
}

func TestLaneThatLeftStaysAWhile(t *testing.T) {
	d := newDirectory(nil)
	d.accept(all)
	now := time.Now()
	topics := func() int { w, _ := d.wanted(0, "a", nil); return len(w) }
	d.set(now, entries(2, 3))
	d.set(now.Add(time.Second), entries(2, 1)) // narrower: shards may hold messages
	if n := topics(); n != 6 {
		t.Errorf("%d topics after the lanes became narrower, want 6", n)
	}
	d.set(now.Add(2*time.Second), nil) // the store was emptied
	if n := topics(); n != 6 {
		t.Errorf("%d topics after the directory was emptied, want 6", n)
	}
	d.set(now.Add(lanesKept), entries(1, 3)) // one comes back
	d.set(now.Add(2*time.Second+lanesKept), entries(1, 3))
	if n := topics(); n != 3 {
		t.Errorf("%d topics, want the 3 of the lane that came back", n)
	}
}
