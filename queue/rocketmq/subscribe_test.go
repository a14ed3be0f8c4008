package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/lane"
	"penstock/queue/rocketmq/proxy"
)

// rig is a subscriber whose calls are answered by the test, and what it sees of a client
// beside them.
type rig struct {
	*subscriber
	quota  int
	failed atomic.Int64 // when something last failed, unix ns
	back   chan struct{}
}

func newRig(tb testing.TB, cfg Config, answer func(proxy.Change) error) *rig {
	tb.Helper()
	c, err := NewConsumer(cfg, testLog(), prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	c.Accept(all)
	r := &rig{back: make(chan struct{}, 1)}
	r.subscriber = &subscriber{
		consumer: c, work: newWork(),
		link: func() proxy.Link { return proxy.Link{Quota: r.quota, Failed: time.Unix(0, r.failed.Load())} },
		back: r.back, keep: func([]string) {}, send: answer,
		every: nudgeEvery, have: map[string]*subscription{}, young: map[string]*subscription{},
	}
	return r
}

func TestReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards got and fail
		var got []string
		var fail error
		s := newRig(t, DefaultConfig(), func(c proxy.Change) error {
			mu.Lock()
			defer mu.Unlock()
			short := strings.TrimPrefix(c.Action.String(), "PARTIAL_")
			got = append(got, fmt.Sprint(short, " ", len(c.Topics)))
			return fail
		})
		s.every = 24 * time.Hour
		c := s.consumer
		var confirmed []int
		c.cfg.Confirmed = func(keys []lane.Key) { confirmed = append(confirmed, len(keys)) }
		stop := s.start(t)
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
		s.back <- struct{}{}
		expect("the proxy is back", 0, "COMPLETE_ADD 32")

		set := func(err error) { mu.Lock(); fail = err; mu.Unlock() }
		set(errors.New("away"))
		c.Accept(all)
		expect("a call fails: again, then all", 300*time.Millisecond, "ADD 1000", "COMPLETE_ADD 1600", "COMPLETE_ADD 1600") // after 50 and 150 ms
		set(nil)
		expect("until it gets through", time.Minute, "COMPLETE_ADD 1600")

		s.failed.Store(time.Now().UnixNano()) // a receive failed: the broker may forget
		s.back <- struct{}{}
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
		s := newRig(t, DefaultConfig(), func(c proxy.Change) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(time.Since(began).Round(time.Millisecond), " ", strings.TrimPrefix(c.Action.String(), "PARTIAL_"), " ", len(c.Topics)))
			return nil
		})
		lanes := entries(300, 1)
		for i := range 120 {
			lanes[i].Waiting = true
		}
		s.consumer.SetLanes(lanes)
		busy := lane.Name(nil, key(0), 0)
		s.work.begin(busy) // a handler runs
		stop := s.start(t)
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
		s.work.finish(busy, time.Now().Add(2*time.Second)) // suspended
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

// TestNudgeThroughAnOutage: nudges that did not go through are not counted, and once
// the broker takes the whole set again, every lane in which something waits is looked at
// at once.
func TestNudgeThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex // guards all below
		var got []string
		away := false
		s := newRig(t, DefaultConfig(), func(c proxy.Change) error {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return errors.New("no route")
			}
			got = append(got, fmt.Sprint(time.Since(began).Round(time.Millisecond), " ", strings.TrimPrefix(c.Action.String(), "PARTIAL_"), " ", len(c.Topics)))
			return nil
		})
		lanes := entries(100, 1)
		for i := range 10 {
			lanes[i].Waiting = true
		}
		s.consumer.SetLanes(lanes)
		defer s.start(t)()
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

// start runs the subscriber until stop.
func (r *rig) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	return func() { cancel(); <-done }
}
