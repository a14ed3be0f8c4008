package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"penstock/cmd/penstock/flags"
	"penstock/vllm/vllmtest"
)

var manyTenants = flag.Int("tenants", 1000, "how many tenants TestManyTenants lets come, beside as many, at most 20000, before")

// TestManyTenants: each request is a tenant's that nobody has heard of, with a lane of
// its own. When they are over, the metrics page and the heap are as before them.
func TestManyTenants(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("tenants: {default: {trust-fairness-id: true}}\nlanes: {default: {concurrency: 4, starts-per-second: 1000, sends-per-second: 1000}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := vllmtest.Start(t)
	p := startProcess(t, func(o *flags.Options) { o.PolicyFile = file }, e.URL())
	come := func(from, n int) {
		t.Helper()
		next := make(chan int)
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				for i := range next {
					if r := p.post(completion(20, 1, ""), "X-Gateway-Inference-Fairness-Id", fmt.Sprintf("%016x", uint64(i)*0x9e3779b97f4a7c15)); r.status != http.StatusOK {
						t.Errorf("tenant %d: %v", i, r)
					}
				}
			})
		}
		for i := range n {
			next <- from + i
		}
		close(next)
		group.Wait()
	}
	series := func() (n int) {
		for _, f := range p.families() {
			n += len(f.GetMetric())
		}
		return n
	}
	heap := func() int64 {
		p.log.mu.Lock()
		p.log.lines = nil // the test's own
		p.log.mu.Unlock()
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	first := min(*manyTenants, 20_000) // more than finished records are remembered
	come(0, first)
	before, heapBefore := series(), heap()
	come(first, *manyTenants)
	p.until("all are over", func() bool { return p.metric("penstock_open_requests") == 0 })
	grown := heap() - heapBefore
	t.Logf("%d tenants: %d series, %+d KiB on the heap", *manyTenants, series(), grown>>10)
	if got := series(); got != before {
		t.Errorf("%d series after %d tenants, %d before", got, *manyTenants, before)
	}
	if grown > 8<<20 {
		t.Errorf("the heap grew by %d KiB, want 8 MiB at most", grown>>10)
	}
}
