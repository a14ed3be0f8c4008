//go:build e2e

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/cmd/penstock/flags"
	"penstock/vllm/vllmtest"
)

// TestRealPolicyReloads writes 1,000 policies to a real Redis, each once the one before
// is in force, while clients of three tiers send: every request is answered whole, none
// is told that its tier is not known, no lane runs more than the largest of its limits, and
// nothing runs or waits at the end. Then Redis forgets the key, and the last policy stays.
func TestRealPolicyReloads(t *testing.T) {
	addr := os.Getenv("E2E_REDIS")
	if addr == "" {
		t.Fatal("E2E_REDIS is not set: start one with scripts/redis start and give host:port")
	}
	const reloads, clients, most = 1000, 24, 4 // most: the largest concurrency of a lane in any of the policies
	back := flags.Backends{}
	if err := back.ReadRedis(addr, "", ""); err != nil {
		t.Fatal(err)
	}
	back.Policy.Key += ":" + rand.Text()
	raw := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2})
	t.Cleanup(func() { raw.Del(context.Background(), back.Policy.Key); _ = raw.Close() })
	p := startProcess(t, func(o *flags.Options) { o.PolicyIn, o.Redis = flags.InRedis, &back.Policy }, vllmtest.Start(t, vllmtest.WithStep(2*time.Millisecond)).URL())
	at, err := openStore("redis:", "", back.Policy)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()

	var old []byte
	text := func(i int) []byte {
		extra := []string{"", ", {name: more}"}[i%2]
		return fmt.Appendf(nil, "# %d\ntiers: [{name: vip}, {name: normal}%s, {name: trial}]\nlanes: {default: {concurrency: %d}}\n", i, extra, 1+i%most)
	}
	push := func(i int) {
		t.Helper()
		next, before := text(i), p.Policy().Hash
		if err := at.Replace(t.Context(), old, next); err != nil {
			t.Fatal(err)
		}
		old = next
		p.until(fmt.Sprintf("policy %d", i), func() bool { return p.Policy().Hash != before })
	}
	push(0)
	var over atomic.Bool
	var answered atomic.Int64
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			tier := []string{"vip", "normal", "trial"}[c%3]
			for !over.Load() {
				r := p.post(completion(20, 4, streamed), "X-Penstock-Tier", tier)
				switch {
				case r.complete():
					answered.Add(1)
				case r.refused(): // where this process gets no CPU its engine looks dead
					p.bound("%s: %v", tier, r)
				default:
					t.Errorf("%s: %v", tier, r)
					return
				}
			}
		})
	}
	began := time.Now()
	peak := 0.0
	for i := 1; i <= reloads; i++ {
		push(i)
		if i%10 == 0 {
			for _, tier := range []string{"vip", "normal", "trial"} {
				peak = max(peak, p.metric("penstock_lane_permits", "state=used", "tier="+tier))
			}
		}
	}
	took := time.Since(began)
	over.Store(true)
	wg.Wait()
	p.until("nothing runs", func() bool { return p.metric("penstock_lane_permits", "state=used") == 0 })
	if n := p.metric("penstock_lane_backlog_requests"); n != 0 {
		t.Errorf("%v requests wait at the end", n)
	}
	if n := p.metric("penstock_policy_reload_failures_total"); n != 0 {
		t.Errorf("%v reloads failed", n)
	}
	changed := strings.Count(strings.Join(p.log.all(), ""), "policy changed")
	if n := answered.Load(); changed != reloads+1 || n < reloads/10 {
		t.Errorf("%d policies were in force, %d requests answered; want %d and a tenth of that", changed, n, reloads+1)
	}
	if peak > most || peak < 2 {
		t.Errorf("up to %v ran in a lane, want more than one and at most %d", peak, most)
	}
	last := p.Policy()
	raw.Del(t.Context(), back.Policy.Key)
	raw.Publish(t.Context(), back.Policy.Key, "")
	p.until("gone", func() bool { return strings.Contains(p.PolicyState().Problem, "is gone") })
	if p.Policy() != last {
		t.Error("a key that is gone took the policy with it")
	}
	t.Logf("%d reloads in %v, %d requests answered, %v at once in a lane", reloads, took.Round(time.Millisecond), answered.Load(), peak)
}
