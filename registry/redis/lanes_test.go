package redis

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/registry"
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
	stop()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]registry.Lane{{Key: chat, Width: 32}, {Key: odd, Width: 32}}, lanes); diff != "" {
		t.Errorf("lanes, -want +got:\n%s", diff)
	}
	huge := chat
	huge.Tenant = strings.Repeat("x", maxKey)
	if _, err := gateway.Open(t.Context(), request("4", huge), registry.Drain{Engines: 1}); err == nil {
		t.Error("open of a lane with a huge key: no error")
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
		id, entry, err := r.entry(k)
		if err != nil {
			t.Fatal(err)
		}
		if i < 3 {
			openOne(t, r, name(i), k)
		} else if _, err := r.run(t.Context(), "lanelist", 0, "", id, entry); err != nil {
			t.Fatal(err)
		}
	}
	w := watch{r: r, entries: map[string]struct{}{}}
	if !w.read(t.Context()) || len(w.lanes()) != 700 {
		t.Fatalf("%d lanes read, want 700", len(w.lanes()))
	}
	s.raw.FlushAll(t.Context())
	s.advance(time.Millisecond)
	k := chat
	k.Tenant = "new"
	openOne(t, r, "new", k)
	if !w.read(t.Context()) || len(w.lanes()) != 701 {
		t.Errorf("%d lanes after the loss, want 701", len(w.lanes()))
	}
	if n := s.raw.HLen(t.Context(), prefix+"lanes:entry").Val(); n != 701 {
		t.Errorf("%d lanes in Redis after the loss, want 701", n)
	}
	s.advance(laneIdle + time.Minute)
	for range 15 {
		if _, err := r.run(t.Context(), "sweep", 0); err != nil {
			t.Fatal(err)
		}
	}
	if w.read(t.Context()); len(w.lanes()) != 0 {
		t.Errorf("%d lanes are listed when idle", len(w.lanes()))
	}
	audit(t, s)
}

func TestAnnouncements(t *testing.T) {
	w := watch{version: "7.3", entries: map[string]struct{}{}}
	for _, c := range []struct {
		text       string
		new, stale bool
	}{
		{"7.3 a", false, false}, // read already
		{"7.4 b", true, false},
		{"7.6 d", false, true}, // one is missing
		{"7.5 c", false, true}, // until it has been read
	} {
		if got := w.take(c.text); got != c.new || w.stale != c.stale {
			t.Errorf("%q: new %v, stale %v, want %v, %v", c.text, got, w.stale, c.new, c.stale)
		}
	}
	w = watch{version: "7.3"}
	if w.take("") || !w.stale {
		t.Error("a new connection must read anew")
	}
}
