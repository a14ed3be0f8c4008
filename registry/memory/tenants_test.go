package memory

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// once takes one request of a tenant nobody has heard of through its life.
func once(tb testing.TB, r *Registry, i int) {
	k := lane.Key{Tier: "gold", Type: "chat", Model: "m", Tenant: fmt.Sprintf("tenant-%07d", i)}
	id := fmt.Sprintf("%032x", i)
	a, err := r.Open(tb.Context(), registry.Request{ID: id, Lane: k, Reply: "g", Deadline: time.Now().Add(time.Minute), Tokens: 100, Limit: time.Hour}, registry.Drain{Engines: 1, Rate: 1e6})
	if err != nil || a.Reason != reason.OK {
		tb.Fatalf("open: %+v, %v", a, err)
	}
	c, err := r.Claim(tb.Context(), registry.Start{ID: id, Attempt: "a", Owner: "o", Lane: k, Deadline: time.Now().Add(time.Minute), Reply: "g"})
	if err != nil || c.Action != registry.Run {
		tb.Fatalf("claim: %+v, %v", c, err)
	}
	if ok, err := r.Finish(tb.Context(), id, "a", []byte("end"), quota.Usage{}); !ok || err != nil {
		tb.Fatalf("finish: %t, %v", ok, err)
	}
}

func forTenants(tb testing.TB) *Registry {
	cfg := testConfig()
	cfg.Pace = func(lane.Key) float64 { return 10 }
	cfg.Finished = 1000
	r, err := New(cfg, func(string, []byte) error { return nil }, func(string, string, string) {})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestTenants: of tenants that came and went nothing is left but the finished records
// that are remembered, however many there were.
func TestTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := forTenants(t)
		for i := range 10_000 {
			once(t, r, i)
		}
		if records, lanes := r.Len(); records != r.cfg.Finished || lanes != 0 {
			t.Errorf("%d records and %d lanes are held, want %d and none", records, lanes, r.cfg.Finished)
		}
		time.Sleep(time.Second)
		r.sweep(time.Now())
		if len(r.paced) != 0 || r.bytes != 0 {
			t.Errorf("%d paces and %d bytes are held, want none", len(r.paced), r.bytes)
		}
	})
}

// BenchmarkTenants is one request of each of b.N tenants; -benchtime 1000000x shows
// that a million leave no more behind than a thousand.
func BenchmarkTenants(b *testing.B) {
	r := forTenants(b)
	for i := range 2000 {
		once(b, r, -1-i)
	}
	before, i := heapBytes(), 0
	b.ReportAllocs()
	for b.Loop() {
		once(b, r, i)
		if i++; i%10_000 == 0 {
			r.sweep(time.Now().Add(time.Second)) // as Run does
		}
	}
	r.sweep(time.Now().Add(time.Second))
	b.ReportMetric(float64(heapBytes()-before)/float64(b.N), "B-left/tenant")
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
