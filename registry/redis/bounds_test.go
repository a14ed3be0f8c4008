package redis

import (
	"testing"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

// TestBounds: a lane's own bounds and width hold beside those of the store, never above
// them.
func TestBounds(t *testing.T) {
	s := fake(t)
	cfg := testConfig(s)
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes, cfg.Width = 4, 1<<20, 1<<20, 3
	bounds := registry.Bounds{Requests: 2, Width: 1}
	cfg.Bounds = func(k lane.Key) registry.Bounds {
		if k.Tier == "trial" {
			return bounds
		}
		return registry.Bounds{Requests: 100, Width: 100}
	}
	r := dial(t, s, cfg)
	open := func(id, tier string, bytes int) registry.Admission {
		t.Helper()
		a, err := r.Open(t.Context(), registry.Request{
			ID: id, Lane: lane.Key{Tier: tier, Model: "q"}, Deadline: s.now().Add(time.Minute), Tokens: 10, Bytes: bytes, Limit: time.Hour,
		}, registry.Drain{Engines: 1, Rate: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for i, want := range []reason.Reason{reason.OK, reason.OK, reason.LaneFull} {
		if a := open("t"+string(rune('0'+i)), "trial", 1); a.Reason != want || a.Shard != 0 {
			t.Errorf("trial %d: %v in shard %d, want %v in its only one", i, a.Reason, a.Shard, want)
		}
	}
	for i, want := range []reason.Reason{reason.OK, reason.OK, reason.OK, reason.OK, reason.LaneFull} {
		a := open("o"+string(rune('0'+i)), "other", 1)
		if a.Reason != want || want == reason.OK && a.Shard != i%3 {
			t.Errorf("other %d: %v in shard %d, want %v in %d: the store has 4 requests, 3 shards", i, a.Reason, a.Shard, want, i%3)
		}
	}
	bounds = registry.Bounds{Bytes: 10_000}
	if a := open("t7", "trial", 9000); a.Reason != reason.LaneFull {
		t.Errorf("bytes: %v, want lane_full", a.Reason)
	}
	if a := open("t8", "trial", 5000); a.Reason != reason.OK || a.Shard == 0 {
		t.Errorf("fewer bytes, and bounds that have grown: %v in shard %d, want ok in another", a.Reason, a.Shard)
	}
}
