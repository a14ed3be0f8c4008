package redis

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	goredis "github.com/redis/go-redis/v9"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/redisconn/redisconntest"
	"penstock/registry"
	"penstock/registry/registrytest"
)

func name(i int) string { return "n" + strconv.Itoa(i) }

func request(id string, k lane.Key) registry.Request {
	return registry.Request{ID: id, Lane: k, Reply: "g", Deadline: time.Now().Add(time.Minute), Tokens: 100, Bytes: 10, Limit: time.Hour}
}

func start(id, attempt string, k lane.Key) registry.Start {
	return registry.Start{ID: id, Attempt: attempt, Owner: "o", Lane: k, Deadline: time.Now().Add(time.Minute), Reply: "g", Tokens: 100}
}

func openOne(t testing.TB, r registry.Records, id string, k lane.Key) registry.Admission {
	t.Helper()
	a, err := r.Open(context.Background(), request(id, k), registry.Drain{Engines: 1})
	if err != nil || a.Reason != reason.OK {
		t.Fatalf("open %s: %+v, %v", id, a, err)
	}
	return a
}

func until(t testing.TB, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("not within 10 s")
		}
	}
}

// running runs r until the test ends.
func running(t testing.TB, r *Registry) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestConfigNamesTheField(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"Addr":         func(c *Config) { c.Addr = "" },
		"Addr: ":       func(c *Config) { c.Addr = "http://x" },
		"Prefix":       func(c *Config) { c.Prefix = "" },
		"Deadline":     func(c *Config) { c.Deadline = 0 },
		"Connections":  func(c *Config) { c.Connections = 0 },
		"ConfirmWait":  func(c *Config) { c.ConfirmWait = -1 },
		"LaneRequests": func(c *Config) { c.LaneRequests = 0 },
		"LaneBytes":    func(c *Config) { c.LaneBytes = -1 },
		"TotalBytes":   func(c *Config) { c.TotalBytes = 0 },
		"Width":        func(c *Config) { c.Width = lane.MaxWidth + 1 },
		"Mailbox":      func(c *Config) { c.Mailbox = 0 },
		"Terminal":     func(c *Config) { c.Terminal = nil },
		"PasswordFile": func(c *Config) { c.Password, c.PasswordFile = "a", "b" },
		"CAFile":       func(c *Config) { c.CAFile = filepath.Join(t.TempDir(), "none") },
	} {
		cfg := DefaultConfig()
		cfg.Addr, cfg.Terminal = "127.0.0.1:1", registrytest.Terminal
		if err := cfg.Validate(); err != nil {
			t.Fatalf("the defaults: %v", err)
		}
		spoil(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a bad %s: %v, want an error that names it", field, err)
		}
	}
}

func TestPasswordFileIsReadAgain(t *testing.T) {
	m := miniredis.RunT(t)
	m.RequireAuth("one")
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	cfg := testConfig(&server{addr: "redis://" + m.Addr() + "/0"})
	cfg.PasswordFile = file
	r := dial(t, &server{}, cfg)
	if _, err := r.Engines(t.Context()); err != nil {
		t.Fatalf("with the password of the file: %v", err)
	}
	m.RequireAuth("two")
	m.Restart() // its connections are gone
	write("two")
	until(t, func() bool { _, err := r.Engines(t.Context()); return err == nil })
}

// A Redis that is not there costs its deadline a few times and then nothing, and is
// found again without a restart.
func TestAway(t *testing.T) {
	for what, breakIt := range map[string]func(*miniredis.Miniredis) (mend func()){
		"refuses": func(m *miniredis.Miniredis) func() { m.Close(); return func() { _ = m.Restart() } },
		"fails":   func(m *miniredis.Miniredis) func() { m.SetError("READONLY failover"); return func() { m.SetError("") } },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := miniredis.RunT(t)
			cfg := testConfig(&server{addr: m.Addr()})
			cfg.Deadline = 50 * time.Millisecond
			r := dial(t, &server{}, cfg)
			running(t, r)
			until(t, func() bool { ok, _ := r.Ready(); return ok })
			mend := breakIt(m)
			until(t, func() bool {
				_, _ = r.Engines(t.Context())
				ok, why := r.Ready()
				return !ok && strings.HasPrefix(why, "redis away: ") && len(why) > len("redis away: no call yet")
			})
			var slowest time.Duration
			refused := 0
			for range 1000 {
				begin := time.Now()
				_, err := r.Claim(t.Context(), start("1", "a", chat))
				if !errors.Is(err, registry.ErrAway) {
					t.Fatalf("claim: %v, want ErrAway", err)
				}
				took := time.Since(begin)
				if kindOf(err) == refusedAtOnce {
					refused++
					slowest = max(slowest, took)
				}
			}
			if refused < 900 {
				t.Errorf("%d of 1000 calls were refused at once", refused)
			}
			t.Logf("slowest refusal %v", slowest)
			mend()
			until(t, func() bool { ok, _ := r.Ready(); return ok })
			if _, err := r.Claim(t.Context(), start("1", "a", chat)); err != nil {
				t.Errorf("claim when it is back: %v", err)
			}
		})
	}
}

// A Redis that is away is tried about once a second, whatever is called.
func TestAwayIsTriedSeldom(t *testing.T) {
	t.Parallel()
	addr, tried := redisconntest.Away(t)
	cfg := testConfig(&server{addr: addr})
	cfg.Deadline = 50 * time.Millisecond
	r := dial(t, &server{}, cfg)
	running(t, r)
	const watched = 1500 * time.Millisecond
	for begin := time.Now(); time.Since(begin) < watched; time.Sleep(time.Millisecond) {
		_, _ = r.Engines(t.Context())
	}
	// The clock, the listener, the test and a spare may begin before the first has failed.
	if n := tried.Load(); n < 3 || n > 8 {
		t.Errorf("%d connections in %v, want 3 to 8", n, watched)
	}
}

// A Redis that accepts and never answers is held to the deadline.
func TestHang(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := testConfig(&server{addr: l.Addr().String()})
	cfg.Deadline = 50 * time.Millisecond
	r := dial(t, &server{}, cfg)
	for range tripAfter {
		begin := time.Now()
		_, err := r.Cancel(t.Context(), "1", false)
		if took := time.Since(begin); !errors.Is(err, registry.ErrAway) || took > 500*time.Millisecond {
			t.Errorf("cancel: %v after %v, want ErrAway at the deadline", err, took)
		}
	}
	if _, err := r.Cancel(t.Context(), "1", false); kindOf(err) != refusedAtOnce {
		t.Errorf("call %d: %v, want it refused at once", tripAfter+1, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fresh := dial(t, &server{}, cfg)
	for range 2 * tripAfter {
		if _, err := fresh.Cancel(ctx, "1", false); !errors.Is(err, context.Canceled) || errors.Is(err, registry.ErrAway) {
			t.Errorf("with the caller gone: %v, want its own error", err)
		}
	}
	if fresh.breaker.Counts().TotalFailures > 0 {
		t.Error("a caller that left counts against Redis")
	}
}

func TestShards(t *testing.T) {
	s := fake(t)
	cfg := testConfig(s)
	cfg.Width = 3
	r := dial(t, s, cfg)
	shards := func(ids ...string) (got []int) {
		for _, id := range ids {
			tokens := map[byte]int{'s': 10, 'm': 100, 'l': 1000}[id[0]]
			q := request(id, chat)
			q.Tokens = tokens
			a, err := r.Open(t.Context(), q, registry.Drain{Engines: 1})
			if err != nil || a.Reason != reason.OK {
				t.Fatalf("open %s: %+v, %v", id, a, err)
			}
			got = append(got, a.Shard)
		}
		return got
	}
	if diff := cmp.Diff([]int{0, 1, 2, 1, 1, 1}, shards("l1", "s1", "m1", "s2", "s3", "s4")); diff != "" {
		t.Errorf("lowest empty, then fewest tokens, -want +got:\n%s", diff)
	}
	if _, err := r.Finish(t.Context(), "m1", "", nil, quota.Usage{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{2, 1}, shards("l2", "s1")); diff != "" {
		t.Errorf("an emptied one; a repeat the same; -want +got:\n%s", diff)
	}
	audit(t, s)
}

// A crash of whoever holds a request, at any step of it, leaves no count behind.
func TestCountsHeal(t *testing.T) {
	for steps := range 6 {
		s := fake(t)
		r := dial(t, s, testConfig(s))
		box := mailboxesOf(r, s)
		ctx := t.Context()
		for i, step := range []func() error{
			func() error { openOne(t, box, "1", chat); return nil },
			func() error { _, err := r.Claim(ctx, start("1", "a", chat)); return err },
			func() error { return r.Release(ctx, "1", "a", false) },
			func() error { _, err := r.Claim(ctx, start("1", "b", chat)); return err },
			func() error { _, err := r.First(ctx, "1", "b", []byte("first")); return err },
			func() error { _, err := r.Cancel(ctx, "1", false); return err },
		} {
			if i > steps {
				break
			}
			if err := step(); err != nil {
				t.Fatal(err)
			}
			audit(t, s)
		}
		s.advance(50 * time.Minute) // nobody comes by in time: the record is gone too
		openOne(t, box, "2", chat)
		audit(t, s)
		if n := s.raw.ZCard(ctx, prefix+"out").Val(); n != 1 {
			t.Errorf("crash after step %d: %d outstanding, want only the new one", steps, n)
		}
	}
}

// The k-th refused start of a lane is told the k-th free slot, whenever it asks.
func TestPaceTellsEachItsSlot(t *testing.T) {
	s := fake(t)
	cfg := testConfig(s)
	rate := 10.0
	cfg.Pace = func(lane.Key) float64 { return rate }
	r := dial(t, s, cfg)
	begin := s.now()
	due := map[string]time.Time{}
	for i := range 32 {
		due[name(i)] = begin
	}
	started, refused := 0, 0
	for s.now().Sub(begin) < 10*time.Second {
		next := slices.MinFunc(slices.Sorted(maps.Keys(due)), func(a, b string) int { return due[a].Compare(due[b]) })
		if wait := due[next].Sub(s.now()); wait > 0 {
			s.advance(wait)
		}
		c, err := r.Claim(t.Context(), registry.Start{ID: next, Attempt: next, Owner: "o", Lane: chat, Deadline: s.now().Add(time.Minute), Reply: "g", Tokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case c.Action == registry.Run:
			started++
			delete(due, next)
			due["x"+strconv.Itoa(started)] = s.now().Add(5 * time.Millisecond) // the shard's next head
		case c.Reason == reason.Paced:
			refused++
			due[next] = s.now().Add(max(c.After, 50*time.Millisecond)) // the broker's floor
		default:
			t.Fatalf("claim: %+v", c)
		}
	}
	if perSecond := float64(started) / 10; perSecond < 9.5 || perSecond > 10.5 {
		t.Errorf("%.2f starts per second, want 9.5 to 10.5", perSecond)
	}
	if refused > 6*started {
		t.Errorf("%d refusals for %d starts", refused, started)
	}
	t.Logf("%d starts, %d refusals", started, refused)
}

func TestUnknownFormatIsNotGuessedAt(t *testing.T) {
	s := fake(t)
	r := dial(t, s, testConfig(s))
	s.raw.HSet(t.Context(), prefix+"r:1", "v", "9", "state", "1")
	if _, err := r.Claim(t.Context(), start("1", "a", chat)); err == nil || errors.Is(err, registry.ErrAway) {
		t.Errorf("claim of a record of another format: %v, want an error that is not about Redis", err)
	}
	s.raw.HSet(t.Context(), prefix+"engines:entry", "n", `{"v":9}`)
	s.raw.ZAdd(t.Context(), prefix+"engines", goredis.Z{Score: float64(s.now().UnixMilli()), Member: "n"})
	if list, err := r.Engines(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("engines: %v, %v, want the unknown one left out", list, err)
	}
}

// Redis was emptied since the last renewal: what ends is heard all the same, and
// nobody else runs it.
func TestEmptied(t *testing.T) {
	s := fake(t)
	r := dial(t, s, testConfig(s))
	box := mailboxesOf(r, s)
	for _, id := range []string{"1", "2"} {
		openOne(t, box, id, chat)
		if _, err := r.Claim(t.Context(), start(id, "a", chat)); err != nil {
			t.Fatal(err)
		}
	}
	s.raw.FlushAll(t.Context())
	box.made = map[string]bool{}
	box.make(t.Context(), "g")
	if ok, err := r.First(t.Context(), "1", "a", []byte("first")); !ok || err != nil {
		t.Errorf("first: %v, %v", ok, err)
	}
	if c, err := r.Claim(t.Context(), start("1", "b", chat)); err != nil || c.Reason != reason.LiveOwner {
		t.Errorf("claim by another: %+v, %v, want live_owner", c, err)
	}
	for _, id := range []string{"1", "2"} {
		if ok, err := r.Finish(t.Context(), id, "a", []byte("end "+id), quota.Usage{}); !ok || err != nil {
			t.Errorf("finish %s: %v, %v", id, ok, err)
		}
		if c, err := r.Claim(t.Context(), start(id, "c", chat)); err != nil || c.Reason != reason.AlreadyDone {
			t.Errorf("claim of a finished one: %+v, %v, want already_done", c, err)
		}
	}
	if got := events(t, s, "g"); !slices.Equal(got, []string{"first", "end 1", "end 2"}) {
		t.Errorf("events %q", got)
	}
	audit(t, s)
	if len(r.running) > 0 {
		t.Errorf("%d attempts are remembered at rest", len(r.running))
	}
}

// The gateway lives and its mailbox is not there: Redis was emptied. Nothing ends
// before it can be heard.
func TestMailboxMissing(t *testing.T) {
	s := fake(t)
	cfg := testConfig(s)
	cfg.Live = func(string) string { return "gw" }
	r := dial(t, s, cfg)
	s.raw.Set(t.Context(), "gw", 1, time.Hour)
	openOne(t, r, "1", chat)
	if _, err := r.Claim(t.Context(), start("1", "a", chat)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Finish(t.Context(), "1", "a", []byte("end"), quota.Usage{}); !errors.Is(err, registry.ErrAway) {
		t.Fatalf("finish without a mailbox: %v, want ErrAway", err)
	}
	s.raw.XAdd(t.Context(), &goredis.XAddArgs{Stream: "g", Values: []string{"from", "0-0"}})
	if ok, err := r.Finish(t.Context(), "1", "a", []byte("end"), quota.Usage{}); !ok || err != nil {
		t.Fatalf("finish again: %v, %v", ok, err)
	}
	if got := events(t, s, "g"); !slices.Equal(got, []string{"end"}) {
		t.Errorf("events %q, want the end", got)
	}
}
