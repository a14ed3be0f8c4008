package rocketmq

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/prometheus/client_golang/prometheus"

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

// rig is a subscriber whose calls are answered by the test.
func newTestSubscriber(t *testing.T, answer func(change) error) *subscriber {
	t.Helper()
	cfg := DefaultConfig()
	c, err := NewConsumer(cfg, testLog(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	c.Accept(all)
	s := newSubscriber(c, newSession(1, c.metrics), nil)
	s.send = answer
	return s
}

func TestReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards got and fail
		var got []string
		var fail error
		s := newTestSubscriber(t, func(c change) error {
			mu.Lock()
			defer mu.Unlock()
			short := strings.TrimPrefix(c.action.String(), "PARTIAL_")
			got = append(got, fmt.Sprint(short, " ", len(c.topics)))
			return fail
		})
		s.every = 24 * time.Hour
		c := s.consumer
		var confirmed []int
		c.cfg.Confirmed = func(keys []lane.Key) { confirmed = append(confirmed, len(keys)) }
		stop := startSubscriber(t, s)
		defer stop()
		expect := func(what string, after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			got = nil
		}
		expect("at the start", 0, "COMPLETE_ADD 0")
		c.SetLanes(entries(2, 32))
		expect("new lanes, at once", 0, "ADD 64")
		c.SetLanes(entries(2, 32))
		expect("nothing new", 10*time.Second)
		c.SetLanes(entries(50, 32))
		expect("many lanes", 0, "ADD 1000", "ADD 536")
		c.Accept(func(k lane.Key) bool { return k == key(0) })
		expect("less accepted", 0, "REMOVE 1000", "REMOVE 568")
		s.session.wake()
		expect("the proxy is back", 0, "COMPLETE_ADD 32")

		set := func(err error) { mu.Lock(); fail = err; mu.Unlock() }
		set(errors.New("away"))
		c.Accept(all)
		expect("a call fails: again, then all", 300*time.Millisecond, "ADD 1000", "COMPLETE_ADD 1600", "COMPLETE_ADD 1600") // after 50 and 150 ms
		set(nil)
		expect("until it gets through", time.Minute, "COMPLETE_ADD 1600")

		s.session.failed.Store(time.Now().UnixNano()) // a receive failed: the broker may forget
		s.session.wake()
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(got) < 5 || len(got) > 10 || slices.ContainsFunc(got, func(call string) bool { return call != "COMPLETE_ADD 1600" }) {
			t.Errorf("after a failed receive: %v, want the whole set for about 5 s", got)
		}
		if want := []int{2, 50, 50}; !slices.Equal(confirmed, want) {
			t.Errorf("confirmed %v lanes, want %v", confirmed, want)
		}
	})
}

// TestNudge: lanes are subscribed anew where a message may wait unseen, not where a
// handler is at work.
func TestNudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex // guards got
		var got []string
		s := newTestSubscriber(t, func(c change) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(time.Since(began).Round(time.Millisecond), " ", strings.TrimPrefix(c.action.String(), "PARTIAL_"), " ", len(c.topics)))
			return nil
		})
		lanes := entries(300, 1)
		for i := range 120 {
			lanes[i].Waiting = true
		}
		s.consumer.SetLanes(lanes)
		busy := lane.Name(nil, key(0), 0)
		s.session.begin(busy) // a handler runs
		stop := startSubscriber(t, s)
		defer stop()
		time.Sleep(7 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []string{
			"0s COMPLETE_ADD 300",
			"100ms REMOVE 299", "100ms ADD 299",
			"1.1s REMOVE 299", "1.1s ADD 299",
		}
		if len(got) < 5 || !slices.Equal(got[:5], want) {
			t.Fatalf("calls %v, want first %v", got, want)
		}
		quiet := 0
		for _, call := range got[5:] {
			var at, action string
			var n int
			if _, err := fmt.Sscan(call, &at, &action, &n); err != nil || n > nudgeMost+nudgeIdle {
				t.Errorf("call %q", call)
			}
			if action == "ADD" {
				quiet += n
			}
		}
		if quiet < 119+3*nudgeIdle || quiet > 119+4*nudgeIdle { // at 6.25, 6.5, 6.75 and 7 s
			t.Errorf("%d quiet lanes nudged after 6.1 s, want the 119 that wait and a few that do not: %v", quiet, got[5:])
		}
		got = nil
		mu.Unlock()
		s.session.finish(busy, time.Now().Add(2*time.Second)) // suspended
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		mu.Lock()
		for _, want := range []string{"9.1s ADD 1", "10.1s ADD 1"} {
			if !slices.Contains(got, want) {
				t.Errorf("after a Suspend of 2 s: %v, want %v", got, want)
			}
		}
		got = nil
		mu.Unlock()
		time.Sleep(stale)
		synctest.Wait()
		mu.Lock()
		if !slices.ContainsFunc(got, func(call string) bool { return strings.HasSuffix(call, "ADD 50") }) {
			t.Errorf("when the directory is old: %v, want all nudged", got)
		}
	})
}

func TestSessionDead(t *testing.T) {
	m, err := newConsumerMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, tc := range map[string]struct {
		polled, heard time.Duration
		dead          bool
	}{
		"lively":         {time.Second, time.Second, false},
		"a long poll":    {25 * time.Second, 9 * time.Second, false},
		"no poll":        {silence + time.Second, time.Second, true},
		"a silent proxy": {time.Second, silence + time.Second, true},
	} {
		s := newSession(1, m)
		s.polled.Store(now.Add(-tc.polled).UnixNano())
		s.heard.Store(now.Add(-tc.heard).UnixNano())
		if why := s.dead(now); (why != "") != tc.dead {
			t.Errorf("%s: dead = %q", name, why)
		}
	}
}

func TestFill(t *testing.T) {
	m, err := newConsumerMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(1, m)
	s.topics = []string{"a", "b"}
	r := &pb.SyncLiteSubscriptionRequest{Action: pb.LiteSubscriptionAction_COMPLETE_ADD, LiteTopicSet: []string{"the library's"}}
	s.fill(r)
	if !slices.Equal(r.GetLiteTopicSet(), s.topics) {
		t.Errorf("the library's repetition carries %v", r.GetLiteTopicSet())
	}
}

func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		l := newLease(func() error {
			at = append(at, time.Since(began))
			if len(at) == 3 {
				return errors.New("away")
			}
			return nil
		})
		time.Sleep(22 * time.Second)
		l.end()
		time.Sleep(time.Minute)
		want := []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 16 * time.Second, 21 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("renewed at %v, want %v", at, want)
		}
	})
}

func TestLeaseEndWaits(t *testing.T) {
	entered, leave, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := newLease(func() error { close(entered); <-leave; return nil })
	go l.fire()
	<-entered
	go func() { l.end(); close(ended) }()
	select {
	case <-ended:
		t.Error("end returned while a renewal ran")
	case <-time.After(20 * time.Millisecond):
	}
	close(leave)
	<-ended
}

func TestValidate(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"Endpoint":       func(c *Config) { c.Endpoint = "broker" },
		"Topic":          func(c *Config) { c.Topic = "" },
		"Group":          func(c *Config) { c.Group = strings.Repeat("g", 128) },
		"SecretKey":      func(c *Config) { c.AccessKey = "a" },
		"CAFile":         func(c *Config) { c.CAFile = "/nowhere" },
		"PublishTimeout": func(c *Config) { c.PublishTimeout = 0 },
		"Concurrency":    func(c *Config) { c.Concurrency = 0 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Validate with a bad %s = %v, want an error naming it", field, err)
		}
	}
}

// TestNudgeThroughAnOutage: nudges that did not go through are not counted, and once
// the broker takes the whole set again, every lane in which something waits is looked at
// at once.
func TestNudgeThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex // guards all below
		var got []string
		away := false
		s := newTestSubscriber(t, func(c change) error {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return errors.New("no route")
			}
			got = append(got, fmt.Sprint(time.Since(began).Round(time.Millisecond), " ", strings.TrimPrefix(c.action.String(), "PARTIAL_"), " ", len(c.topics)))
			return nil
		})
		lanes := entries(100, 1)
		for i := range 10 {
			lanes[i].Waiting = true
		}
		s.consumer.SetLanes(lanes)
		defer startSubscriber(t, s)()
		time.Sleep(4 * time.Second)
		mu.Lock()
		away = true
		got = nil
		mu.Unlock()
		time.Sleep(4 * time.Second) // quiet lanes are due, and fail
		s.consumer.SetLanes(lanes)
		mu.Lock()
		away = false
		mu.Unlock()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		i := slices.IndexFunc(got, func(call string) bool { return strings.Contains(call, "COMPLETE_ADD") })
		all := func(call string) bool { return strings.HasSuffix(call, "ADD 10") }
		if i < 0 || !slices.ContainsFunc(got[i+1:min(i+7, len(got))], all) { // a few quiet ones may come between
			t.Fatalf("calls %v, want the whole set and soon after it the ten lanes that wait", got)
		}
	})
}
