//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// spent is how many tokens engines have computed and made.
func spent(t *testing.T, engines ...*part) (sum float64) {
	t.Helper()
	for _, e := range engines {
		n, err := e.metric("vllm:generation_tokens_total")
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum + prefilled(t, engines...)
}

// thirst is clients of one tenant that ask without end, and what came of it.
type thirst struct {
	stop context.CancelFunc
	all  sync.WaitGroup
	mu   sync.Mutex
	done []*reply
}

// drink has a tenant's clients ask for as much as they get, half of them at each gateway.
func (f *fleet) drink(t *testing.T, tenant, clients int) *thirst {
	ctx, stop := context.WithCancel(t.Context())
	d := &thirst{stop: stop}
	for c := range clients {
		d.all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				a := ask{model: alpha, prompt: fmt.Sprintf("drink %d %d", c, i), tokens: 20, stream: i%2 == 0, key: key(tenant)}
				r := send(ctx, f.gateways[c%2], a, nil)
				if ctx.Err() != nil {
					return // it left
				}
				d.mu.Lock()
				d.done = append(d.done, r)
				d.mu.Unlock()
				if r.status != http.StatusOK {
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	return d
}

// drain takes what a tenant's limit holds and returns what is left of it.
func (f *fleet) drain(t *testing.T, tenant int) (left float64) {
	t.Helper()
	for i := range 80 {
		r := send(t.Context(), f.gateways[i%2], ask{model: alpha, prompt: fmt.Sprintf("drain %d %s", i, strings.Repeat("many tokens ", 250)), tokens: 1, key: key(tenant)}, nil)
		if got, err := f.judge(r); got != whole || err != nil {
			t.Fatalf("request %d of a tenant that has something left: %s %v", i, got, err)
		}
		var err error
		if left, err = strconv.ParseFloat(r.header.Get("X-Ratelimit-Remaining-Tokens"), 64); err != nil {
			t.Fatal(err)
		}
		if left < 1500 {
			return left
		}
	}
	t.Fatalf("%v tokens are left after 80 large requests", left)
	return 0
}

// TestQuota: one limit holds over both gateways, though one of them is killed and Redis,
// too: a tenant gets its rate, and what Redis had not yet written down beside it. While
// Redis is away everything is refused, at once.
func TestQuota(t *testing.T) {
	f := the(t)
	const (
		perSecond = 200.
		lost      = 2 * time.Second // of what was taken may be missing in a Redis that was killed
		request   = 50.             // more than one takes
		clients   = 16
	)
	rounds := 1
	if *full {
		rounds = 5
	}
	tenant := f.freshTenant()
	f.rule(t, fmt.Sprintf("tenants: {tenant-%d: {quota: {tokens-per-minute: %.0f}}}\n", tenant, perSecond*60))
	left := f.drain(t, tenant)
	before, began := spent(t, f.engines[:2]...), time.Now()
	d := f.drink(t, tenant, clients)
	for range rounds {
		time.Sleep(2 * time.Second)
		if err := f.gateways[1].end(syscall.SIGKILL, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := f.gateways[1].start(); err != nil {
			t.Fatal(err)
		}
		if err := f.gateways[1].awaitReady(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := killRedis(); err != nil {
			t.Fatal(err)
		}
		f.refusesAtOnce(t)
		if _, err := script("", "scripts/redis", "start"); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, func() string {
			for _, g := range f.gateways {
				r := send(t.Context(), g, ask{model: alpha, prompt: "after Redis", tokens: 1, key: key(0)}, nil)
				if got, err := f.judge(r); got != whole || err != nil {
					return fmt.Sprintf("%s after Redis' start: %s %v", g.name, got, err)
				}
			}
			return ""
		})
		time.Sleep(2 * time.Second)
	}
	took := time.Since(began)
	got := spent(t, f.engines[:2]...) - before
	d.stop()
	d.all.Wait()
	n := map[string]int{}
	for _, r := range d.done {
		class, err := f.judge(r)
		if err != nil {
			t.Error(err)
		}
		n[class]++
	}
	most := left + perSecond*(took+time.Duration(rounds)*lost).Seconds()*1.02 + clients*request
	t.Logf("%.0f tokens in %v at %.0f per second, of %.0f that were left and at most; outcomes:", got, took.Round(time.Millisecond), perSecond, most)
	for _, class := range slices.Sorted(maps.Keys(n)) {
		t.Logf("  %6d %s", n[class], class)
	}
	if got > most {
		t.Errorf("%.0f tokens in %v, want at most %.0f", got, took, most)
	}
	if least := perSecond * took.Seconds() / 3; got < least {
		t.Errorf("%.0f tokens in %v, want at least %.0f", got, took, least)
	}
}

// refusesAtOnce holds what gateways say while Redis has been away for more than the
// second for which they try again.
func (f *fleet) refusesAtOnce(t *testing.T) {
	t.Helper()
	time.Sleep(1200 * time.Millisecond)
	before := prefilled(t, f.engines[:2]...)
	var took []float64
	for i := -2; i < 20; i++ { // a gateway that had nobody to answer tries for a second first
		r := send(t.Context(), f.gateways[i&1], ask{model: alpha, prompt: fmt.Sprintf("away %d", i), tokens: 1, key: key(0)}, nil)
		if got, err := f.judge(r); got != "refused: 503 record_store_away" || err != nil {
			t.Errorf("with Redis away: %s %v, want 503 record_store_away", got, err)
		}
		if i >= 0 {
			took = append(took, r.took.Seconds()*1000)
		}
	}
	if n := prefilled(t, f.engines[:2]...) - before; n > 0 {
		t.Errorf("%.0f prompt tokens were computed while Redis was away, want none", n)
	}
	t.Logf("with Redis away: 503 after p50 %.1f ms, longest of 20 %.1f ms", quantile(took, 0.5), quantile(took, 1))
	if slow := quantile(took, 0.9); slow > 50 {
		t.Errorf("with Redis away a refusal takes %.0f ms, want at most 50", slow)
	}
}
