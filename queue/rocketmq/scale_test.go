package rocketmq

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"penstock/lane"
	"penstock/queue/rocketmq/proxy"
)

// tenants is a directory of n lanes with that many shards each.
func tenants(n, width int) []lane.Entry {
	entries := make([]lane.Entry, n)
	for i := range entries {
		entries[i] = lane.Entry{Key: lane.Key{Tier: "gold", Type: "chat", Model: "meta-llama/Llama-3.1-8B-Instruct", Tenant: fmt.Sprintf("tenant-%07d", i)}, Width: width}
	}
	return entries
}

// scaled is a subscriber whose calls all succeed.
func scaled(tb testing.TB, quota int) *rig {
	cfg := DefaultConfig()
	cfg.Node, cfg.Nodes = "a", func() []string { return []string{"a", "b", "c", "d"} }
	s := newRig(tb, cfg, func(proxy.Change) error { return nil })
	s.quota = quota
	return s
}

// BenchmarkLanes is what an agent spends on 10,000 lanes: per 2 s (the directory is
// told again, nothing has changed), per new lane, per nudge.
func BenchmarkLanes(b *testing.B) {
	for _, tc := range []struct {
		name  string
		width int
		quota int
	}{{"width=1", 1, 0}, {"width=1/quota=2000", 1, 2000}, {"width=32", 32, 0}, {"width=32/quota=10000", 32, 10_000}} {
		entries := tenants(10_000, tc.width)
		before := heap()
		s := scaled(b, tc.quota)
		dir := s.consumer.lanes
		dir.set(time.Now(), entries)
		if err := s.reconcile(true); err != nil {
			b.Fatal(err)
		}
		used := float64(heap()-before) / float64(len(entries))
		b.Run(tc.name+"/tick", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				dir.set(time.Now(), entries)
				_ = s.reconcile(false)
			}
			b.ReportMetric(used, "B/lane")
			b.ReportMetric(float64(len(s.have)), "topics")
		})
		b.Run(tc.name+"/new", func(b *testing.B) {
			more := entries
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				more = append(more[:len(entries)], lane.Entry{Key: lane.Key{Tenant: fmt.Sprint(i)}, Width: 1})
				dir.set(time.Now(), more)
				_ = s.reconcile(false)
			}
		})
		b.Run(tc.name+"/nudge", func(b *testing.B) {
			b.ReportAllocs()
			now := time.Now()
			for b.Loop() {
				now = now.Add(nudgeEvery * 5)
				_ = s.nudge(now, true)
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
