//go:build e2e

package redis

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/registrytest"
)

// realDB is emptied by every test.
const realDB = 15

// real is the Redis at E2E_REDIS. Its clock, as scripts see it, is moved by a key,
// and what is left of every key's time with it.
func real(t testing.TB) *server {
	addr := os.Getenv("E2E_REDIS")
	if addr == "" {
		t.Fatal("E2E_REDIS is not set: start one with scripts/redis start and give host:port")
	}
	ctx := context.Background()
	s := &server{addr: addr, db: realDB, raw: goredis.NewClient(&goredis.Options{Addr: addr, DB: realDB, Protocol: 2})}
	t.Cleanup(func() { _ = s.raw.Close() })
	if err := s.raw.FlushDB(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	var skew time.Duration
	s.now = func() time.Time { return time.Now().Add(skew) }
	s.advance = func(d time.Duration) {
		skew += d
		keys := s.raw.Keys(ctx, "*").Val()
		left := make([]*goredis.DurationCmd, len(keys))
		_, _ = s.raw.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for i, key := range keys {
				left[i] = p.PTTL(ctx, key)
			}
			return nil
		})
		if _, err := s.raw.Pipelined(ctx, func(p goredis.Pipeliner) error {
			p.Set(ctx, prefix+"skew", skew.Milliseconds(), 0)
			for i, key := range keys {
				if ttl := left[i].Val(); ttl > 0 {
					p.PExpire(ctx, key, ttl-d)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.shifted = func(script string) string {
		return strings.Replace(script, "local SKEW = 0", "local SKEW = tonumber(redis.call('GET', ARGV[1] .. 'skew') or 0)", 1)
	}
	return s
}

func TestRealRules(t *testing.T) { registrytest.Run(t, on(real)) }

func TestRealLongest(t *testing.T) { registrytest.Longest(t, on(real), DefaultConfig().Width) }

func TestRealAnyOrder(t *testing.T) { registrytest.Interleave(t, on(real)) }

// At maxmemory new work is refused, and what runs can be renewed, heard and ended.
func TestRealOutOfMemory(t *testing.T) {
	s, ctx := real(t), context.Background()
	r := dial(t, s, testConfig(s))
	box := mailboxesOf(r, s)
	openOne(t, box, "1", chat)
	openOne(t, box, "2", chat)
	for _, id := range []string{"1", "2"} {
		if c, err := r.Claim(ctx, start(id, "a", chat)); err != nil || c.Action != registry.Run {
			t.Fatalf("claim: %+v, %v", c, err)
		}
	}
	s.raw.ConfigSet(ctx, "maxmemory", "1mb")
	defer s.raw.ConfigSet(ctx, "maxmemory", "0")
	_, err := r.Open(ctx, request("3", chat), registry.Drain{Engines: 1})
	if !errors.Is(err, ErrFull) || !errors.Is(err, registry.ErrAway) {
		t.Errorf("open at maxmemory: %v, want ErrFull", err)
	}
	if lost, err := r.Renew(ctx, "o", []registry.Ref{{ID: "1", Attempt: "a", Reply: "g"}}); err != nil || len(lost) > 0 {
		t.Errorf("renew at maxmemory: %v, %v", lost, err)
	}
	if ok, err := r.First(ctx, "1", "a", []byte("first")); !ok || err != nil {
		t.Errorf("first at maxmemory: %v, %v", ok, err)
	}
	if ok, err := r.Finish(ctx, "1", "a", []byte("end"), quota.Usage{}); !ok || err != nil {
		t.Errorf("finish at maxmemory: %v, %v", ok, err)
	}
	if err := r.Release(ctx, "2", "a", true); err != nil {
		t.Errorf("release at maxmemory: %v", err)
	}
	if c, err := r.Cancel(ctx, "2", false); err != nil || c.State != registry.Queued {
		t.Errorf("cancel at maxmemory: %+v, %v", c, err)
	}
	if ok, _ := r.Ready(); !ok && r.breaker.State().String() != "closed" {
		t.Error("the breaker opened: Redis answers, it is only full")
	}
	s.raw.ConfigSet(ctx, "maxmemory", "0")
	audit(t, s)
	if got := strings.Join(events(t, s, "g"), " "); got != "first end" {
		t.Errorf("events %q, want first end", got)
	}
	openOne(t, box, "4", chat)
}

// A primary that became a replica is away, with nothing assumed done, until it is
// one again.
func TestRealReadOnly(t *testing.T) {
	s, ctx := real(t), context.Background()
	r := dial(t, s, testConfig(s))
	box := mailboxesOf(r, s)
	openOne(t, box, "1", chat)
	s.raw.Do(ctx, "replicaof", "127.0.0.1", "1")
	defer s.raw.Do(ctx, "replicaof", "no", "one")
	s.raw.ConfigSet(ctx, "replica-serve-stale-data", "yes")
	for range tripAfter {
		if _, err := r.Claim(ctx, start("1", "a", chat)); !errors.Is(err, registry.ErrAway) {
			t.Fatalf("claim on a replica: %v, want ErrAway", err)
		}
	}
	begin := time.Now()
	for range 100 {
		_, _ = r.Claim(ctx, start("1", "a", chat))
	}
	if took := time.Since(begin); took > 20*time.Millisecond {
		t.Errorf("100 calls with the breaker open took %v", took)
	}
	s.raw.Do(ctx, "replicaof", "no", "one")
	until(t, func() bool {
		c, err := r.Claim(ctx, start("1", "a", chat))
		return err == nil && c.Action == registry.Run && c.Tries == 1
	})
}

// Many callers at once on the real server; every request ends once and nothing counts.
func TestRealConcurrent(t *testing.T) {
	s, ctx := real(t), context.Background()
	cfg := testConfig(s)
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes = 1000, 1<<20, 1<<20
	r := dial(t, s, cfg)
	box := mailboxesOf(r, s)
	const requests = 200
	for i := range requests {
		openOne(t, box, name(i), chat)
	}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := range requests {
				id, attempt := name(i), name(w)
				c, err := r.Claim(ctx, start(id, attempt, chat))
				if err != nil {
					t.Error(err)
				}
				if c.Action == registry.Run {
					_, _ = r.First(ctx, id, attempt, []byte("first "+id))
				}
				_, _ = r.Renew(ctx, attempt, []registry.Ref{{ID: id, Attempt: attempt, Reply: "g"}})
				_ = r.Release(ctx, id, attempt, false)
				_, _ = r.Cancel(ctx, id, false)
				_, _ = r.Finish(ctx, id, attempt, []byte("end "+id), quota.Usage{})
			}
		})
	}
	workers.Wait()
	ends := map[string]int{}
	for _, e := range events(t, s, "g") {
		if words := strings.Fields(e); words[0] == "end" {
			ends[words[1]]++
		}
	}
	for i := range requests {
		if n := ends[name(i)]; n > 1 {
			t.Errorf("%s ended %d times", name(i), n)
		}
	}
	audit(t, s)
	if n := s.raw.ZCard(ctx, prefix+"out").Val(); n != 0 {
		t.Errorf("%d outstanding at rest", n)
	}
}

func TestRealLinearizable(t *testing.T) { linearizable(t, real(t), 300) }

// Every call of one caller at a time, with 10,000 requests waiting in 100 lanes; then
// whole requests of 16 callers. Metrics p50-us and p99-us are of single calls.
func BenchmarkReal(b *testing.B) {
	s, ctx := real(b), context.Background()
	cfg := testConfig(s)
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes, cfg.Connections = 1<<20, 1<<40, 1<<40, 16
	s.shifted = nil
	r := dial(b, s, cfg)
	box := mailboxesOf(r, s)
	in := func(i int) lane.Key {
		k := chat
		k.Tenant = name(i % 100)
		return k
	}
	for i := range 10_000 {
		openOne(b, box, "w"+name(i), in(i))
	}
	must := func(b *testing.B, ok bool, err error) {
		if !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
	next := 0
	open := func() string {
		next++
		openOne(b, r, name(next), in(next))
		return name(next)
	}
	claim := func() string {
		id := open()
		c, err := r.Claim(ctx, start(id, "a", in(next)))
		must(b, c.Action == registry.Run, err)
		return id
	}
	event := make([]byte, 200)
	for _, op := range []struct {
		name  string
		setup func() string
		call  func(b *testing.B, id string)
	}{
		{"open", func() string { next++; return name(next) }, func(b *testing.B, id string) { openOne(b, r, id, in(next)) }},
		{"refuse", func() string { next++; return name(next) }, func(b *testing.B, id string) {
			q := request(id, in(next))
			q.Limit, q.Fingerprint = time.Second, uint64(next)
			a, err := r.Open(ctx, q, registry.Drain{Engines: 1, Rate: 1000})
			must(b, a.Reason != reason.OK, err)
		}},
		{"claim", open, func(b *testing.B, id string) {
			c, err := r.Claim(ctx, start(id, "a", in(next)))
			must(b, c.Action == registry.Run, err)
		}},
		{"first", claim, func(b *testing.B, id string) {
			ok, err := r.First(ctx, id, "a", event)
			must(b, ok, err)
		}},
		{"finish", claim, func(b *testing.B, id string) {
			ok, err := r.Finish(ctx, id, "a", event, quota.Usage{})
			must(b, ok, err)
		}},
		{"longest", func() string { return "" }, func(b *testing.B, _ string) {
			l, total, err := r.Longest(ctx, 20)
			must(b, len(l) == 20 && total == 100, err)
		}},
		{"release", claim, func(b *testing.B, id string) { must(b, true, r.Release(ctx, id, "a", true)) }},
		{"cancel", open, func(b *testing.B, id string) {
			c, err := r.Cancel(ctx, id, true)
			must(b, c.State == registry.Queued, err)
		}},
		{"renew64", claim, func(b *testing.B, id string) {
			refs := make([]registry.Ref, 64)
			for i := range refs {
				refs[i] = registry.Ref{ID: "x" + name(i), Attempt: "a", Reply: "g"}
			}
			lost, err := r.Renew(ctx, "o", refs)
			must(b, len(lost) == 0, err)
		}},
	} {
		b.Run(op.name, func(b *testing.B) {
			ids := make([]string, b.N)
			for i := range ids {
				ids[i] = op.setup()
			}
			s.raw.ConfigResetStat(ctx)
			b.ResetTimer()
			var took []time.Duration
			for _, id := range ids {
				begin := time.Now()
				op.call(b, id)
				took = append(took, time.Since(begin))
			}
			b.ReportMetric(usedMicros(s), "redis-us")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
	b.Run("request", func(b *testing.B) {
		s.raw.ConfigResetStat(ctx)
		var ids atomic.Int64
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				n := int(ids.Add(1))
				id := "p" + strconv.Itoa(b.N) + name(n)
				openOne(b, r, id, in(n))
				c, err := r.Claim(ctx, start(id, "a", in(n)))
				must(b, c.Action == registry.Run, err)
				ok, err := r.First(ctx, id, "a", event)
				must(b, ok, err)
				ok, err = r.Finish(ctx, id, "a", event, quota.Usage{})
				must(b, ok, err)
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		b.ReportMetric(usedMicros(s), "redis-us")
	})
}

// usedMicros is Redis's own time per script since the last CONFIG RESETSTAT.
func usedMicros(s *server) float64 {
	_, rest, _ := strings.Cut(s.raw.Info(context.Background(), "commandstats").Val(), "cmdstat_evalsha:")
	_, rest, _ = strings.Cut(rest, "usec_per_call=")
	used, _, _ := strings.Cut(rest, ",")
	f, _ := strconv.ParseFloat(used, 64)
	return f
}
