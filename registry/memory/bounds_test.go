package memory_test

import (
	"testing"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/memory"
	"penstock/registry/registrytest"
)

// TestBounds: a lane's own bounds hold beside those of the store, never above them.
func TestBounds(t *testing.T) {
	cfg := memory.DefaultConfig()
	cfg.Terminal, cfg.LaneRequests = registrytest.Terminal, 4
	bounds := registry.Bounds{Requests: 2}
	cfg.Bounds = func(k lane.Key) registry.Bounds {
		if k.Tier == "trial" {
			return bounds
		}
		return registry.Bounds{Requests: 100}
	}
	r, err := memory.New(cfg, func(string, []byte) error { return nil }, func(string, string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	open := func(id, tier string, bytes int) reason.Reason {
		t.Helper()
		a, err := r.Open(t.Context(), registry.Request{
			ID: id, Lane: lane.Key{Tier: tier, Model: "q"}, Deadline: time.Now().Add(time.Minute), Tokens: 10, Bytes: bytes, Limit: time.Hour,
		}, registry.Drain{Engines: 1, Rate: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return a.Reason
	}
	for i, want := range []reason.Reason{reason.OK, reason.OK, reason.LaneFull} {
		if got := open("t"+string(rune('0'+i)), "trial", 1); got != want {
			t.Errorf("trial %d: %v, want %v", i, got, want)
		}
	}
	for i, want := range []reason.Reason{reason.OK, reason.OK, reason.OK, reason.OK, reason.LaneFull} {
		if got := open("o"+string(rune('0'+i)), "other", 1); got != want {
			t.Errorf("other %d: %v, want %v: the store's bound is 4", i, got, want)
		}
	}
	bounds = registry.Bounds{Bytes: 10_000}
	if got := open("t7", "trial", 9000); got != reason.LaneFull {
		t.Errorf("bytes: %v, want lane_full", got)
	}
	if got := open("t8", "trial", 5000); got != reason.OK {
		t.Errorf("fewer bytes, and a bound that has grown: %v, want ok", got)
	}
}
