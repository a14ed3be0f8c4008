package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock/lane"
	"penstock/registry"
	"penstock/registry/redis/script"
)

// A lane no agent has confirmed is waited for, once and not for long.
func TestConfirm(t *testing.T) {
	s := fake(t)
	cfg := testConfig(s)
	cfg.ConfirmWait = 50 * time.Millisecond
	gateway, agent := dial(t, s, cfg), dial(t, s, cfg)
	running(t, gateway)
	running(t, agent)
	until(t, func() bool { a, _ := gateway.Ready(); b, _ := agent.Ready(); return a && b })

	var mu sync.Mutex
	var lanes []registry.Lane
	watching, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	confirm := make(chan bool, 1)
	go func() {
		done <- agent.Watch(watching, func(all []registry.Lane) {
			mu.Lock()
			defer mu.Unlock()
			if len(all) != len(lanes) {
				select {
				case confirm <- true:
				default:
				}
			}
			lanes = all
		})
	}()
	open := func(id string, k lane.Key) time.Duration {
		begin := time.Now()
		openOne(t, gateway, id, k)
		return time.Since(begin)
	}
	if took := open("1", chat); took < cfg.ConfirmWait {
		t.Errorf("open of a lane nobody confirms took %v, want %v", took, cfg.ConfirmWait)
	}
	<-confirm
	odd := lane.Key{Tier: "x", Type: "chat", Model: "m/ä b", Tenant: "\x00../\xff" + strings.Repeat("long", 100)}
	answered := make(chan error, 1)
	go func() {
		<-confirm
		answered <- agent.Confirm(t.Context(), "node", []lane.Key{chat, odd})
	}()
	if took := open("2", odd); took > 45*time.Millisecond {
		t.Errorf("open of a lane that is confirmed at once took %v", took)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if took := open("3", chat); took > 45*time.Millisecond {
		t.Errorf("open of a confirmed lane took %v", took)
	}
	until(t, func() bool { // the second request uses a second shard
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(lanes, func(l registry.Lane) bool { return l.Key == chat && l.Width == 4 })
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]registry.Lane{{Key: chat, Width: 4}, {Key: odd, Width: 1}}, lanes, cmpopts.SortSlices(func(a, b registry.Lane) bool { return a.Key.Tier < b.Key.Tier }), cmpopts.IgnoreFields(registry.Lane{}, "Waiting")); diff != "" {
		t.Errorf("lanes, -want +got:\n%s", diff)
	}
	huge := chat
	huge.Tenant = strings.Repeat("x", script.MaxKey)
	if _, err := gateway.Open(t.Context(), request("4", huge), registry.Drain{Engines: 1}); err == nil {
		t.Error("open of a lane with a huge key: no error")
	}
}

// A lane is listed as wide as it is used, and with whether something waits in it.
func TestUsedLanes(t *testing.T) {
	s := fake(t)
	cfg := testConfig(s)
	cfg.LaneRequests = 100
	r := dial(t, s, cfg)
	w := watch{r: r, lanes: map[lane.Key]*place{}}
	expect := func(when string, width int, waiting bool) {
		t.Helper()
		if at := w.lanes[chat]; !w.read(t.Context()) || w.lanes[chat].width != width || w.lanes[chat].waiting != waiting {
			t.Errorf("%s: %+v, want width %d and waiting %t", when, at, width, waiting)
		}
	}
	for i, width := range []int{1, 4, 8, 8, 16, 16, 16, 16, 32, 32} {
		openOne(t, r, name(i), chat)
		expect(fmt.Sprint(i+1, " outstanding"), width, true)
	}
	for i := range 10 {
		c, err := r.Claim(t.Context(), start(name(i), "a", chat))
		if err != nil || c.Action != registry.Run {
			t.Fatalf("claim: %+v, %v", c, err)
		}
		expect(fmt.Sprint(i+1, " run"), 32, i < 9)
	}
	if err := r.Release(t.Context(), name(0), "a", true); err != nil {
		t.Fatal(err)
	}
	expect("one is given back", 32, true)
	if _, err := r.Cancel(t.Context(), name(0), true); err != nil {
		t.Fatal(err)
	}
	expect("it is cancelled", 32, false)
}

// Confirm says a lane once, and again when the directory has lost it.
func TestConfirmOnce(t *testing.T) {
	s := fake(t)
	r := dial(t, s, testConfig(s))
	w := watch{r: r, lanes: map[lane.Key]*place{}}
	ok := func() bool { return s.raw.HLen(t.Context(), prefix+"lanes:ok").Val() == 1 }
	confirm := func() {
		t.Helper()
		if err := r.Confirm(t.Context(), "n", []lane.Key{chat}); err != nil {
			t.Fatal(err)
		}
	}
	openOne(t, r, "1", chat)
	w.read(t.Context())
	confirm()
	if !ok() {
		t.Fatal("not confirmed")
	}
	s.raw.Del(t.Context(), prefix+"lanes:ok")
	if confirm(); ok() {
		t.Error("confirmed twice")
	}
	s.raw.FlushAll(t.Context())
	s.advance(time.Millisecond)
	openOne(t, r, "2", chat)
	w.read(t.Context())
	if confirm(); !ok() {
		t.Error("not confirmed again after the directory was lost")
	}
}

// What a watcher knows survives a Redis that lost everything.
func TestLostDirectory(t *testing.T) {
	s := fake(t)
	r := dial(t, s, testConfig(s))
	for i := range 700 {
		k := chat
		k.Tenant = name(i)
		q := request(name(i), k)
		q.Bytes = -1
		id, key, err := script.Lane(k)
		if err != nil {
			t.Fatal(err)
		}
		if i < 3 {
			openOne(t, r, name(i), k)
		} else if _, err := r.run(t.Context(), "lanelist", 0, "", id, "1 "+key); err != nil {
			t.Fatal(err)
		}
	}
	w := watch{r: r, lanes: map[lane.Key]*place{}}
	if !w.read(t.Context()) || len(w.lanes) != 700 {
		t.Fatalf("%d lanes read, want 700", len(w.lanes))
	}
	s.raw.FlushAll(t.Context())
	s.advance(time.Millisecond)
	k := chat
	k.Tenant = "new"
	openOne(t, r, "new", k)
	if !w.read(t.Context()) || len(w.lanes) != 701 {
		t.Errorf("%d lanes after the loss, want 701", len(w.lanes))
	}
	if n := s.raw.HLen(t.Context(), prefix+"lanes:entry").Val(); n != 701 {
		t.Errorf("%d lanes in Redis after the loss, want 701", n)
	}
	s.advance(script.LaneIdle + time.Minute)
	for range 15 {
		if _, err := r.run(t.Context(), "sweep", 0); err != nil {
			t.Fatal(err)
		}
	}
	if w.read(t.Context()); len(w.lanes) != 0 {
		t.Errorf("%d lanes are listed when idle", len(w.lanes))
	}
	audit(t, s)
}

func TestAnnouncements(t *testing.T) {
	r := dial(t, fake(t), testConfig(fake(t)))
	w := watch{r: r, version: "7.3", lanes: map[lane.Key]*place{}}
	for _, c := range []struct {
		text       string
		new, stale bool
	}{
		{`7.3 1 {"Tenant":"YQ=="}`, false, false}, // read already
		{`7.4 1 {"Tenant":"Yg=="}`, true, false},
		{`7.5 1 {"Tenant":"Yw=="}`, true, false},
		{`7.6 0 {"Tenant":"Yg=="}`, true, false}, // it goes
		{`7.8 1 {"Tenant":"ZQ=="}`, false, true}, // one is missing
		{`7.7 1 {"Tenant":"ZA=="}`, false, true}, // until it has been read
	} {
		if got := w.take(c.text); got != c.new || w.stale != c.stale {
			t.Errorf("%q: new %v, stale %v, want %v, %v", c.text, got, w.stale, c.new, c.stale)
		}
	}
	if len(w.lanes) != 1 || w.lanes[lane.Key{Tenant: "c"}] == nil {
		t.Errorf("%v are known, want c", w.lanes)
	}
	w = watch{version: "7.3"}
	if w.take("") || !w.stale {
		t.Error("a new connection must read anew")
	}
}
