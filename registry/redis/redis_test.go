package redis

import (
	"context"
	"flag"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"penstock/lane"
	"penstock/registry"
	"penstock/registry/redis/script"
	"penstock/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = "t:"

var chat = lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: "a"}

// server is a Redis whose clock the test moves.
type server struct {
	addr    string
	db      int
	raw     *goredis.Client
	now     func() time.Time
	advance func(d time.Duration)
	shifted func(script string) string // nil: as it is
}

// fake is an in-process Redis. Its time stands still between advances.
func fake(t testing.TB) *server {
	m := miniredis.RunT(t)
	at := time.Now().Truncate(time.Second)
	m.SetTime(at)
	s := &server{addr: m.Addr(), raw: goredis.NewClient(&goredis.Options{Addr: m.Addr(), DisableIdentity: true, Protocol: 2})}
	t.Cleanup(func() { _ = s.raw.Close() })
	s.now = func() time.Time { return at }
	s.advance = func(d time.Duration) {
		at = at.Add(d)
		m.SetTime(at)
		m.FastForward(d)
	}
	return s
}

func testConfig(s *server) Config {
	cfg := DefaultConfig()
	cfg.Addr, cfg.Prefix, cfg.Deadline, cfg.ConfirmWait = s.addr, prefix, 5*time.Second, 0
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes = registrytest.LaneRequests, registrytest.LaneBytes, registrytest.TotalBytes
	cfg.Terminal, cfg.Rank, cfg.Pace = registrytest.Terminal, registrytest.Rank, registrytest.Pace
	return cfg
}

// dial makes a registry on s and closes it with the test.
func dial(t testing.TB, s *server, cfg Config) *Registry {
	t.Helper()
	r, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if s.db != 0 {
		_ = r.client.Close()
		options, _ := r.cfg.options()
		options.DB = s.db
		r.client = r.link.Client(options)
	}
	if s.shifted != nil {
		sources, err := script.Sources(cfg.Mailbox, cfg.TotalBytes)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range sources {
			r.scripts[name] = goredis.NewScript(s.shifted(text))
		}
	}
	t.Cleanup(func() { _ = r.client.Close() })
	return r
}

// mailboxes makes the stream a gateway would have made.
type mailboxes struct {
	*Registry
	raw  *goredis.Client
	mu   sync.Mutex // guards made
	made map[string]bool
}

func mailboxesOf(r *Registry, s *server) *mailboxes {
	return &mailboxes{Registry: r, raw: s.raw, made: map[string]bool{}}
}

func (m *mailboxes) make(ctx context.Context, reply string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.made[reply] {
		m.made[reply] = true
		m.raw.XAdd(ctx, &goredis.XAddArgs{Stream: reply, Values: []string{"from", "0-0"}})
		m.raw.Expire(ctx, reply, time.Hour)
	}
}

func (m *mailboxes) Open(ctx context.Context, q registry.Request, d registry.Drain) (registry.Admission, error) {
	m.make(ctx, q.Reply)
	return m.Registry.Open(ctx, q, d)
}

func (m *mailboxes) Claim(ctx context.Context, s registry.Start) (registry.Claim, error) {
	m.make(ctx, s.Reply)
	return m.Registry.Claim(ctx, s)
}

func (m *mailboxes) Renew(ctx context.Context, owner string, refs []registry.Ref) ([]registry.Ref, error) {
	for _, ref := range refs {
		m.make(ctx, ref.Reply)
	}
	return m.Registry.Renew(ctx, owner, refs)
}

// on runs the suite's tests on a fresh server each. The counts are checked whenever
// the test looks at them.
func on(fresh func(testing.TB) *server) registrytest.With {
	return func(t *testing.T, test func(*testing.T, registrytest.Harness)) {
		s := fresh(t)
		ctx := context.Background()
		var mu sync.Mutex
		var cancels []registrytest.Cancel
		tracked := map[string]bool{}
		cfg := testConfig(s)
		cfg.Live = func(reply string) string {
			if tracked[reply] {
				return prefix + "gw:" + reply
			}
			return ""
		}
		cfg.Cancel = func(owner, id, attempt string) {
			mu.Lock()
			defer mu.Unlock()
			cancels = append(cancels, registrytest.Cancel{Owner: owner, ID: id, Attempt: attempt})
		}
		r := dial(t, s, cfg)
		listening, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { // not Run: its clock would see the test's jumps
			defer close(done)
			r.listen(listening)
		}()
		defer func() {
			stop()
			<-done
		}()
		marks := 0
		seen := func() []registrytest.Cancel {
			for begin := time.Now(); ; time.Sleep(time.Millisecond) {
				marks++
				s.raw.Publish(ctx, prefix+"cancels", "\nmark "+strconv.Itoa(marks)+"\n")
				time.Sleep(time.Millisecond)
				mu.Lock()
				var list []registrytest.Cancel
				marked := false
				for _, c := range cancels {
					marked = marked || c.ID == "mark "+strconv.Itoa(marks)
					if !strings.HasPrefix(c.ID, "mark ") {
						list = append(list, c)
					}
				}
				mu.Unlock()
				if marked {
					return list
				}
				if time.Since(begin) > 5*time.Second {
					t.Fatal("no message came back")
				}
			}
		}
		seen()
		test(t, registrytest.Harness{
			Records: mailboxesOf(r, s), Directory: r,
			Backlog: func() []registry.Backlog {
				audit(t, s)
				list, err := r.readBacklog(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return list
			},
			Held: func() int {
				return len(s.raw.Keys(ctx, prefix+"r:*").Val()) + len(s.raw.Keys(ctx, prefix+"lane:*").Val())
			},
			Now: s.now,
			Advance: func(d time.Duration) {
				s.advance(d)
				if _, err := r.run(ctx, "sweep", 0); err != nil {
					t.Fatal(err)
				}
			},
			Events:  func(reply string) []string { return events(t, s, reply) },
			Cancels: seen,
			Live: func(reply string, ok bool) {
				tracked[reply] = true
				if ok {
					s.raw.Set(ctx, prefix+"gw:"+reply, 1, time.Hour)
				} else {
					s.raw.Del(ctx, prefix+"gw:"+reply)
				}
			},
		})
		audit(t, s)
	}
}

func events(t testing.TB, s *server, reply string) []string {
	t.Helper()
	entries, err := s.raw.XRange(context.Background(), reply, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if text, is := e.Values[script.EventField].(string); is {
			list = append(list, text)
		}
	}
	return list
}

// audit wants every number to be the sum of what it counts, and every key to expire.
func audit(t testing.TB, s *server) {
	t.Helper()
	ctx := context.Background()
	want, ofID := map[string]map[string]int64{}, map[string]string{}
	add := func(key, field string, n int64) {
		if want[key] == nil {
			want[key] = map[string]int64{}
		}
		want[key][field] += n
	}
	parse := func(member string) (lane, shard string, tokens, bytes int64, tier, model, id string) {
		p := strings.SplitN(member, " ", 7)
		tokens, _ = strconv.ParseInt(p[2], 10, 64)
		bytes, _ = strconv.ParseInt(p[3], 10, 64)
		a, _ := strconv.Atoi(p[4])
		b, _ := strconv.Atoi(p[5])
		return p[0], p[1], tokens, bytes, p[6][:a], p[6][a : a+b], p[6][a+b:]
	}
	for _, member := range s.raw.ZRange(ctx, prefix+"out", 0, -1).Val() {
		l, shard, tokens, bytes, tier, model, id := parse(member)
		ofID[id] = member
		add("lane:"+l, "n", 1)
		add("lane:"+l, "b", bytes)
		if shard != "-1" {
			add("lane:"+l, "t"+shard, tokens)
		}
		add("model:"+model, tier+":o", 1)
		add("bytes", "", bytes)
	}
	lanes := map[string]bool{}
	keys := s.raw.Keys(ctx, prefix+"*").Val()
	for _, key := range keys {
		if s.raw.PTTL(ctx, key).Val() == -1 && key != prefix+"skew" {
			t.Errorf("key %s does not expire", key)
		}
		if !strings.HasPrefix(key, prefix+"wait:") {
			continue
		}
		for _, id := range s.raw.ZRange(ctx, key, 0, -1).Val() {
			if ofID[id] == "" {
				t.Errorf("%s waits in %s and is not outstanding", id, key)
				continue
			}
			l, _, tokens, bytes, tier, model, _ := parse(ofID[id])
			add("lane:"+l, "q", 1)
			add("lane:"+l, "t", tokens)
			add("model:"+model, tier+":q", 1)
			add("model:"+model, tier+":t", tokens)
			add("model:"+model, tier+":b", bytes)
			if !lanes[l] {
				lanes[l] = true
				add("model:"+model, tier+":l", 1)
			}
		}
	}
	for _, depth := range s.raw.ZRangeWithScores(ctx, prefix+"lanes:depth", 0, -1).Val() {
		l, _ := depth.Member.(string)
		if own := s.raw.ZCard(ctx, prefix+"waits:"+l).Val(); int64(depth.Score) != want["lane:"+l]["q"] || own != int64(depth.Score) {
			t.Errorf("lane %s has depth %v and %d that wait, want %d", l, depth.Score, own, want["lane:"+l]["q"])
		}
		delete(lanes, l)
	}
	for l := range lanes {
		t.Errorf("lane %s has work that waits and no depth", l)
	}
	got := map[string]map[string]int64{}
	for _, key := range keys {
		name := strings.TrimPrefix(key, prefix)
		fields := map[string]string{}
		switch {
		case strings.HasPrefix(name, "lane:"):
			fields = s.raw.HGetAll(ctx, key).Val()
		case strings.HasPrefix(name, "model:"):
			for field, n := range s.raw.HGetAll(ctx, key).Val() {
				if i := len(field) - 2; i >= 0 && field[i] == ':' && strings.Contains("oqtbl", field[i+1:]) {
					fields[field] = n
				}
			}
		case name == "bytes":
			fields[""] = s.raw.Get(ctx, key).Val()
		}
		for field, text := range fields {
			n, _ := strconv.ParseInt(text, 10, 64)
			if got[name] == nil {
				got[name] = map[string]int64{}
			}
			got[name][field] = n
		}
	}
	for key, fields := range want {
		for field, n := range fields {
			if got[key][field] != n {
				t.Errorf("%s %q counts %d, want %d", key, field, got[key][field], n)
			}
			delete(got[key], field)
		}
	}
	for key, fields := range got {
		for field, n := range fields {
			t.Errorf("%s %q counts %d, want nothing", key, field, n)
		}
	}
}

func TestRules(t *testing.T) { registrytest.Run(t, on(fake)) }

func TestAnyOrder(t *testing.T) {
	// The real server plays all of them; here a step costs a millisecond.
	old := flag.Lookup("rapid.checks").Value.String()
	_ = flag.Set("rapid.checks", "4")
	defer func() { _ = flag.Set("rapid.checks", old) }()
	registrytest.Interleave(t, on(fake))
}
