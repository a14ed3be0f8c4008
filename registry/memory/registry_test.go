package memory

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/door"
	"penstock/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// with runs a test in a bubble, where time passes only when Advance lets it.
func with(t *testing.T, test func(*testing.T, registrytest.Harness)) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		events, dead := map[string][]string{}, map[string]bool{}
		var cancels []registrytest.Cancel
		cfg := testConfig()
		cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes = registrytest.LaneRequests, registrytest.LaneBytes, registrytest.TotalBytes
		cfg.Terminal, cfg.Rank, cfg.Pace = registrytest.Terminal, registrytest.Rank, registrytest.Pace
		cfg.Live = func(reply string) bool {
			mu.Lock()
			defer mu.Unlock()
			return !dead[reply]
		}
		r, err := New(cfg, func(reply string, event []byte) error {
			mu.Lock()
			defer mu.Unlock()
			events[reply] = append(events[reply], string(event))
			return nil
		}, func(owner, id, attempt string) {
			mu.Lock()
			defer mu.Unlock()
			cancels = append(cancels, registrytest.Cancel{Owner: owner, ID: id, Attempt: attempt})
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.Run(ctx) }()
		test(t, registrytest.Harness{
			Records: r, Directory: r,
			Backlog: func() []registry.Backlog { return r.Backlog(time.Now()) },
			Held: func() int {
				records, lanes := r.Len()
				return records + lanes
			},
			Now: time.Now, Advance: func(d time.Duration) {
				time.Sleep(d)
				synctest.Wait()
			},
			Events:  func(reply string) []string { return events[reply] },
			Cancels: func() []registrytest.Cancel { return cancels },
			Live:    func(reply string, ok bool) { dead[reply] = !ok },
		})
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestRules(t *testing.T) { registrytest.Run(t, with) }

func TestAnyOrder(t *testing.T) { registrytest.Interleave(t, with) }

func TestConfigNamesTheField(t *testing.T) {
	appendNothing, tellNobody := func(string, []byte) error { return nil }, func(string, string, string) {}
	for field, spoil := range map[string]func(*Config){
		"LaneRequests": func(c *Config) { c.LaneRequests = 0 },
		"LaneBytes":    func(c *Config) { c.LaneBytes = -1 },
		"TotalBytes":   func(c *Config) { c.TotalBytes = 0 },
		"Finished":     func(c *Config) { c.Finished = 0 },
		"Terminal":     func(c *Config) { c.Terminal = nil },
	} {
		cfg := testConfig()
		spoil(&cfg)
		if _, err := New(cfg, appendNothing, tellNobody); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("New with a bad %s: %v, want an error that names it", field, err)
		}
	}
	if _, err := New(testConfig(), nil, tellNobody); err == nil {
		t.Error("New without appendEvent: no error")
	}
}

// fresh is a registry with plain funcs and the default bounds.
func fresh(t testing.TB, appendEvent func(string, []byte) error) *Registry {
	r, err := New(testConfig(), appendEvent, func(string, string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func open(t testing.TB, r *Registry, id string) {
	t.Helper()
	a, err := r.Open(context.Background(), registry.Request{
		ID: id, Lane: simLane, Reply: "g", Deadline: time.Now().Add(30 * time.Second), Tokens: 100, Bytes: 88, Limit: time.Minute,
	}, registry.Drain{Engines: 1, Rate: 1e6})
	if err != nil || a.Reason != reason.OK {
		t.Fatalf("open %s: %+v, %v", id, a, err)
	}
}

// A terminal event that is ready while the first one is still on its way comes
// after it, and whoever made it does not wait.
func TestEventsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		slow := make(chan struct{})
		r := fresh(t, func(_ string, event []byte) error {
			if string(event) == "first" {
				<-slow
			}
			got = append(got, string(event))
			return nil
		})
		open(t, r, "1")
		if _, err := r.Claim(t.Context(), registry.Start{ID: "1", Attempt: "a", Lane: simLane, Reply: "g"}); err != nil {
			t.Fatal(err)
		}
		go func() {
			if ok, err := r.First(context.Background(), "1", "a", []byte("first")); !ok || err != nil {
				t.Errorf("First: %v, %v", ok, err)
			}
		}()
		synctest.Wait()
		time.Sleep(registry.Ownership)
		c, err := r.Claim(t.Context(), registry.Start{ID: "1", Attempt: "b", Lane: simLane, Reply: "g"})
		if err != nil || c.Reason != reason.UpstreamLost {
			t.Fatalf("claim of a dead stream: %+v, %v", c, err)
		}
		close(slow)
		synctest.Wait()
		if want := []string{"first", "end 1 upstream_lost"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

func TestAppendErrorsReachTheCaller(t *testing.T) {
	gone := errors.New("mailbox gone")
	r := fresh(t, func(string, []byte) error { return gone })
	open(t, r, "1")
	if ok, err := r.Finish(t.Context(), "1", "", []byte("end"), quota.Usage{}); !ok || !errors.Is(err, gone) {
		t.Errorf("Finish: %v, %v, want true and the error", ok, err)
	}
	if ok, err := r.Finish(t.Context(), "1", "", []byte("end"), quota.Usage{}); !ok || err != nil {
		t.Errorf("repeated Finish: %v, %v, want true, nothing appended", ok, err)
	}
}

func TestBacklogForMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fresh(t, func(string, []byte) error { return nil })
		open(t, r, "1")
		time.Sleep(2 * time.Second)
		open(t, r, "2")
		open(t, r, "3")
		time.Sleep(time.Second)
		want := []registry.Backlog{{Tier: "default", Model: "m", Requests: 3, Tokens: 300, Bytes: 3 * (88 + recordBytes), Oldest: 3 * time.Second}}
		if diff := cmp.Diff(want, r.Backlog(time.Now())); diff != "" {
			t.Errorf("backlog, -want +got:\n%s", diff)
		}
		for _, id := range []string{"1", "2"} {
			if _, err := r.Finish(t.Context(), id, "", nil, quota.Usage{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Claim(t.Context(), registry.Start{ID: "3", Attempt: "a", Owner: "n", Reply: "gw"}); err != nil {
			t.Fatal(err)
		}
		want[0] = registry.Backlog{Tier: "default", Model: "m", Running: 1}
		if diff := cmp.Diff(want, r.Backlog(time.Now())); diff != "" {
			t.Errorf("one runs, -want +got:\n%s", diff)
		}
		if _, err := r.Finish(t.Context(), "3", "a", nil, quota.Usage{}); err != nil {
			t.Fatal(err)
		}
		want[0].Running = 0
		if diff := cmp.Diff(want, r.Backlog(time.Now())); diff != "" {
			t.Errorf("empty backlog, -want +got:\n%s", diff)
		}
		r.sweep(time.Now().Add(door.ModelKept + time.Minute))
		if got := r.Backlog(time.Now()); len(got) != 0 {
			t.Errorf("backlog of a forgotten model: %+v", got)
		}
	})
}

func TestFinishedRecordsAreBounded(t *testing.T) {
	r := fresh(t, func(string, []byte) error { return nil })
	r.cfg.Finished = 100
	for i := range 10_000 {
		id := strconv.Itoa(i)
		open(t, r, id)
		if _, err := r.Finish(t.Context(), id, "", nil, quota.Usage{}); err != nil {
			t.Fatal(err)
		}
	}
	if records, lanes := r.Len(); records != 100 || lanes != 0 {
		t.Errorf("%d records and %d lanes after 10,000 requests, want 100 and 0", records, lanes)
	}
	r.sweep(time.Now().Add(time.Minute))
	if records, lanes := r.Len(); records != 0 || lanes != 0 || r.bytes != 0 {
		t.Errorf("%d records, %d lanes, %d bytes at rest, want none", records, lanes, r.bytes)
	}
}

// Callers of every kind at once, for the race detector; every request ends once.
func TestConcurrentCallers(t *testing.T) {
	var mu sync.Mutex
	ends := map[string]int{}
	r := fresh(t, func(_ string, event []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if words := strings.Fields(string(event)); words[0] == "end" {
			ends[words[1]]++ // written by Finish, or for a cancelled one by Release
		}
		return nil
	})
	const requests = 100
	for i := range requests {
		open(t, r, strconv.Itoa(i))
	}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			ctx := context.Background()
			for i := range requests {
				id, attempt := strconv.Itoa(i), strconv.Itoa(w)
				c, err := r.Claim(ctx, registry.Start{ID: id, Attempt: attempt, Owner: attempt, Lane: simLane, Reply: "g"})
				if err != nil {
					t.Error(err)
				}
				if c.Action == registry.Run {
					_, _ = r.First(ctx, id, attempt, []byte("first"))
				}
				_, _ = r.Renew(ctx, attempt, []registry.Ref{{ID: id, Attempt: attempt}})
				_ = r.Release(ctx, id, attempt, false)
				_, _ = r.Cancel(ctx, id, false)
				_, _ = r.Finish(ctx, id, attempt, []byte("end "+id), quota.Usage{})
				r.Backlog(time.Now())
				r.sweep(time.Now())
			}
		})
	}
	workers.Wait()
	for i := range requests {
		if got := ends[strconv.Itoa(i)]; got != 1 {
			t.Errorf("request %d ended %d times", i, got)
		}
	}
	if _, lanes := r.Len(); lanes != 0 || r.bytes != 0 {
		t.Errorf("%d lanes, %d bytes left", lanes, r.bytes)
	}
}

// One request's way, with 10,000 others waiting.
func BenchmarkRequest(b *testing.B) {
	r := fresh(b, func(string, []byte) error { return nil })
	for i := range 9_999 {
		open(b, r, strconv.Itoa(i))
	}
	ctx, n := context.Background(), 0
	for b.Loop() {
		n++
		id := "b" + strconv.Itoa(n)
		open(b, r, id)
		_, _ = r.Claim(ctx, registry.Start{ID: id, Attempt: "a", Lane: simLane, Reply: "g"})
		_, _ = r.First(ctx, id, "a", nil)
		_, _ = r.Finish(ctx, id, "a", nil, quota.Usage{})
	}
}

func BenchmarkRefusal(b *testing.B) {
	r := fresh(b, func(string, []byte) error { return nil })
	q := registry.Request{ID: "0", Lane: simLane, Tokens: 100, Limit: time.Second, Fingerprint: 1}
	ctx := context.Background()
	for b.Loop() {
		a, err := r.Open(ctx, q, registry.Drain{Engines: 1, Rate: 50})
		if err != nil || (a.Reason == reason.OK) != (q.ID == "0") {
			b.Fatalf("open %s: %+v, %v", q.ID, a, err)
		}
		q.ID = "refused"
	}
}
