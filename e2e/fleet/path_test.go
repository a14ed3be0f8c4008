//go:build e2e

package fleet

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestComesUp: with broker and Redis away every part runs, says what it misses and
// refuses clearly; it is ready by itself when they are there.
func TestComesUp(t *testing.T) {
	f := the(t)
	for _, p := range f.withProbes() {
		if why := f.outset.why[p.name]; !strings.HasPrefix(why, "false") || !strings.Contains(why, "redis") || !strings.Contains(why, "rocketmq") {
			t.Errorf("%s with broker and Redis away: readyz %q, want not ready because of both", p.name, why)
		}
		t.Logf("%s: ready %v after broker and Redis", p.name, f.outset.up[p.name].Round(time.Millisecond))
	}
	if r := f.outset.refused; r.status != http.StatusServiceUnavailable || r.code == "" || r.header.Get("Retry-After") == "" {
		t.Errorf("a request with broker and Redis away: %d, code %q, error %v; want 503 with code and Retry-After", r.status, r.code, r.broken)
	}
}

// TestThinPath: two gateways on one Redis, two models, plain and streamed at once;
// everybody gets the answer to the own prompt.
func TestThinPath(t *testing.T) {
	f := the(t)
	var all sync.WaitGroup
	for i := range 80 {
		a := ask{model: alpha, prompt: fmt.Sprintf("thin %d", i), tokens: 5 + i%7, stream: i%4 < 2, key: key(i % 5)}
		if i%8 == 7 {
			a.model = beta
		}
		all.Go(func() {
			r := send(t.Context(), f.gateways[i%2], a, nil)
			if got, err := f.judge(r); got != whole || err != nil {
				t.Errorf("request %d: %s %v", i, got, err)
				return
			}
			if r.header.Get("X-Penstock-Attempts") != "1" || r.header.Get("X-Penstock-Queue-Ms") == "" || r.header.Get("X-Request-Id") == "" {
				t.Errorf("request %d: headers %v", i, r.header)
			}
			if (a.model == beta) != (r.node() == "node2") {
				t.Errorf("request %d for %s ran on %s", i, a.model, r.node())
			}
		})
	}
	all.Wait()
}

// TestSameLabel: the client's x-request-id is a label: two tenants that use the same
// one at once get their own answers.
func TestSameLabel(t *testing.T) {
	f := the(t)
	var all sync.WaitGroup
	for i := range 10 {
		a := ask{
			model: alpha, prompt: fmt.Sprintf("label %d", i), tokens: 20, stream: i%2 == 0, key: key(i),
			header: http.Header{"X-Request-Id": {"the-same"}},
		}
		all.Go(func() {
			r := send(t.Context(), f.gateways[i/2%2], a, nil)
			if got, err := f.judge(r); got != whole || err != nil || r.header.Get("X-Request-Id") != "the-same" {
				t.Errorf("request %d: %s %v, label %q", i, got, err, r.header.Get("X-Request-Id"))
			}
		})
	}
	all.Wait()
}

// TestOddTenants: names that could break keys, lanes or topics are served like any.
// A body over the broker's limit is refused.
func TestOddTenants(t *testing.T) {
	f := the(t)
	for i, name := range hostile {
		r := send(t.Context(), f.gateways[i%2], ask{model: alpha, prompt: fmt.Sprintf("odd %d", i), tokens: 3, key: fmt.Sprintf("hostile-%d", i)}, nil)
		if got, err := f.judge(r); got != whole || err != nil {
			t.Errorf("tenant %.20q: %s %v (%s)", name, got, err, r.code)
		}
	}
	r := send(t.Context(), f.gateways[0], ask{model: alpha, prompt: strings.Repeat("large ", 1<<20), tokens: 3, key: key(0)}, nil)
	if r.status != http.StatusRequestEntityTooLarge || r.code == "" {
		t.Errorf("a body of 6 MiB: %d %s %v, want 413 with a code", r.status, r.code, r.broken)
	}
}

// TestNewTenant: the first request of a tenant starts at once on an idle fleet.
func TestNewTenant(t *testing.T) {
	f := the(t)
	var waits []float64
	for i := range 20 {
		r := send(t.Context(), f.gateways[i%2], ask{model: alpha, prompt: fmt.Sprintf("new %d", i), tokens: 2, stream: i%2 == 0, key: f.fresh()}, nil)
		if got, err := f.judge(r); got != whole || err != nil {
			t.Fatalf("request %d: %s %v", i, got, err)
		}
		ms, err := strconv.ParseFloat(r.header.Get("X-Penstock-Queue-Ms"), 64)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, ms)
	}
	slices.Sort(waits)
	t.Logf("a new tenant's first request starts after p50 %.0f ms, worst of %d %.0f ms", waits[len(waits)/2], len(waits), waits[len(waits)-1])
	if slow := waits[len(waits)-1]; slow > 100 {
		t.Errorf("a new tenant's first request started after %.0f ms, want at most 100", slow)
	}
}
