//go:build e2e

package redis

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/registry"
	"penstock/registry/redis/script"
)

func tenant(i int) lane.Key {
	return lane.Key{Tier: "gold", Type: "chat", Model: "meta-llama/Llama-3.1-8B-Instruct", Tenant: fmt.Sprintf("tenant-%07d", i)}
}

// fill lists n lanes, as Open does.
func fill(tb testing.TB, r *Registry, n int) {
	ctx := tb.Context()
	for from := 0; from < n; from += confirmAtOnce {
		args := []any{"0.0"}
		for i := from; i < min(n, from+confirmAtOnce); i++ {
			id, key, _ := script.Lane(tenant(i))
			args = append(args, id, "1 "+key)
		}
		if _, err := r.run(ctx, "lanelist", 0, args...); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkRealLanes is the lane directory with 10,000 lanes: a full read, the read of
// every 2 s, and one announcement until the agent is told.
func BenchmarkRealLanes(b *testing.B) {
	s := real(b)
	cfg := testConfig(s)
	s.shifted = nil
	r := dial(b, s, cfg)
	const lanes = 10_000
	before := usedMemory(s)
	fill(b, r, lanes)
	b.Logf("%d lanes: %d B each in Redis", lanes, (usedMemory(s)-before)/lanes)
	w := watch{r: r, lanes: map[lane.Key]*place{}}
	read := func(b *testing.B, anew bool) {
		s.raw.ConfigResetStat(b.Context())
		in := traffic(s)
		b.ReportAllocs()
		for b.Loop() {
			if anew {
				w = watch{r: r, lanes: map[lane.Key]*place{}}
			}
			if !w.read(b.Context()) || len(w.lanes) != lanes {
				b.Fatal(len(w.lanes))
			}
		}
		b.ReportMetric(usedMicros(s), "redis-us")
		b.ReportMetric(float64(traffic(s)-in)/float64(b.N), "B/read")
	}
	b.Run("read/full", func(b *testing.B) { read(b, true) })
	b.Run("read/unchanged", func(b *testing.B) { read(b, false) })
	b.Run("announcement", func(b *testing.B) {
		epoch, n := parseVersion(w.version)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			_, key, _ := script.Lane(tenant(lanes + i%100))
			n++
			if !w.take(epoch + "." + strconv.Itoa(n) + " 1 " + key) {
				b.Fatal("stale")
			}
			w.all()
		}
	})
}

// TestRealTenants opens and ends one request of each of TENANTS (2,000) tenants, and says what a tenant costs Redis and this process,
// and that nothing is left when its time is over.
func TestRealTenants(t *testing.T) {
	tenants := 2000
	if n, err := strconv.Atoi(os.Getenv("TENANTS")); err == nil {
		tenants = n
	}
	s, ctx := real(t), context.Background()
	cfg := testConfig(s)
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes, cfg.Connections = 1<<20, 1<<40, 1<<40, 16
	r := dial(t, s, cfg)
	box := mailboxesOf(r, s)
	openOne(t, box, "first", tenant(tenants))
	before, began := usedMemory(s), time.Now()
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := w; i < tenants; i += 8 {
				q := request(name(i), tenant(i))
				if _, err := r.Open(ctx, q, registry.Drain{Engines: 1}); err != nil {
					t.Error(err)
					return
				}
				st := start(name(i), "a", tenant(i))
				if c, err := r.Claim(ctx, st); err != nil || c.Action != registry.Run {
					t.Errorf("claim: %+v, %v", c, err)
					return
				}
				if _, err := r.Finish(ctx, name(i), "a", []byte("end"), quota.Usage{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d tenants in %v: %d B each in Redis, lanes %d, records %d", tenants, time.Since(began).Round(time.Millisecond),
		(usedMemory(s)-before)/tenants, s.raw.HLen(ctx, prefix+"lanes:entry").Val(), len(s.raw.Keys(ctx, prefix+"r:*").Val()))
	if n := len(r.known) + len(r.running) + len(r.waiters); n > knownMost {
		t.Errorf("this process remembers %d lanes and requests", n)
	}
	s.advance(15 * time.Minute) // past deadline and Keep
	time.Sleep(10 * time.Millisecond)
	t.Logf("15 min later: %d B each, records %d", (usedMemory(s)-before)/tenants, len(s.raw.Keys(ctx, prefix+"r:*").Val()))
	s.advance(script.LaneIdle)
	sweeps := 0
	for ; s.raw.HLen(ctx, prefix+"lanes:entry").Val() > 1; sweeps++ {
		if _, err := r.run(ctx, "sweep", 0); err != nil || sweeps > tenants {
			t.Fatal(err, sweeps)
		}
	}
	left := usedMemory(s) - before
	t.Logf("45 min later, after %d sweeps: %d B in all", sweeps, left)
	if left > 1<<20+50*tenants { // scripts and buffers, and tables that shrink later
		t.Errorf("%d B are left", left)
	}
	audit(t, s)
}

func usedMemory(s *server) int { return infoNumber(s, "memory", "used_memory:") }

func traffic(s *server) int { return infoNumber(s, "stats", "total_net_output_bytes:") }

func infoNumber(s *server, section, field string) int {
	_, rest, _ := strings.Cut(s.raw.Info(context.Background(), section).Val(), field)
	text, _, _ := strings.Cut(rest, "\r")
	n, _ := strconv.Atoi(text)
	return n
}
