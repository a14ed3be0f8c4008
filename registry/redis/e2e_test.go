//go:build e2e

package redis

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

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

func TestRealAnyOrder(t *testing.T) { registrytest.Interleave(t, on(real)) }

// At maxmemory new work is refused, and what runs can be renewed, heard and ended.
func TestRealOutOfMemory(t *testing.T) {
	s, ctx := real(t), context.Background()
	r := dial(t, s, testConfig(s))
	box := &mailboxes{r, s.raw, map[string]bool{}}
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
	if ok, err := r.Finish(ctx, "1", "a", []byte("end")); !ok || err != nil {
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
	box := &mailboxes{r, s.raw, map[string]bool{}}
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
	cfg.LaneRequests = 1000
	r := dial(t, s, cfg)
	box := &mailboxes{r, s.raw, map[string]bool{}}
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
				_, _ = r.Finish(ctx, id, attempt, []byte("end "+id))
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

var _ = reason.OK
