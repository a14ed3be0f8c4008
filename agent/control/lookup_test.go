package control

import (
	"errors"
	"testing"
	"time"

	"penstock/lane"
	penstockv1 "penstock/proto/penstock/v1"
	"penstock/registry"
)

func TestLaneLimit(t *testing.T) {
	engine := func(gate string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Ready: gate != "blind", Gate: gate, Models: []string{"q"}, Pool: "a100"}
	}
	for _, tc := range []struct {
		name             string
		waiting, running int
		held             bool
		pool             string
		most             int // concurrency
		pace             float64
		gates            []string
		width            int32 // of the class
		class, lane      string
	}{
		{"no engine", 1, 0, false, "", 0, 0, nil, 0, "no_engine", "no_engine"},
		{"no usable engine", 1, 0, true, "", 0, 0, []string{"blind"}, 0, "no_engine", "no_engine"},
		{"the engines' own width", 1, 4, false, "", 0, 0, []string{"ok", "ok"}, 4, "lane_width", "ok"},
		{"held by its width", 1, 1, true, "", 0, 0, []string{"ok", "kv_high"}, 4, "kv_high", "lane_width"},
		{"held, and every engine is full", 1, 1, true, "", 0, 0, []string{"kv_high"}, 2, "kv_high", "kv_high"},
		{"no engine of its pool", 1, 1, true, "v100", 0, 0, []string{"ok"}, 2, "ok", "no_engine"},
		{"an engine of its pool", 1, 1, true, "a100", 0, 0, []string{"ok"}, 2, "ok", "lane_width"},
		{"the commonest gate", 1, 1, false, "", 0, 0, []string{"kv_high", "ok", "kv_band", "kv_high"}, 8, "kv_high", "kv_high"},
		{"as many as may run", 1, 4, true, "", 2, 1, []string{"ok", "kv_high"}, 4, "lane_width", "lane_concurrency"},
		{"room under its concurrency", 1, 3, false, "", 2, 1, []string{"ok", "kv_high"}, 4, "kv_high", "lane_pace"},
		{"its pace, and engines are full", 1, 1, false, "", 0, 1, []string{"kv_high"}, 2, "kv_high", "kv_high"},
		{"all open", 1, 1, false, "", 0, 0, []string{"ok"}, 2, "ok", "ok"},
	} {
		var engines []*penstockv1.EngineState
		for _, gate := range tc.gates {
			engines = append(engines, engine(gate))
		}
		class := oneClass(&registry.Backlog{Model: "q", Requests: tc.waiting, Running: tc.running}, engines, 2)
		if class.LimitedBy != tc.class || class.Width != tc.width {
			t.Errorf("%s: class %q, width %d; want %q, %d", tc.name, class.LimitedBy, class.Width, tc.class, tc.width)
		}
		s := service{Server: &Server{deps: Deps{Limits: func(lane.Key) (int, float64) { return tc.most, tc.pace }}}}
		one := s.oneLane(&registry.LaneBacklog{Lane: lane.Key{Model: "q", Pool: tc.pool}, Requests: tc.waiting, Running: tc.running, Width: 32, Held: tc.held}, engines)
		if one.LimitedBy != tc.lane || one.Width != 32 {
			t.Errorf("%s: lane %q, width %d; want %q, 32", tc.name, one.LimitedBy, one.Width, tc.lane)
		}
	}
	if rest := oneClass(&registry.Backlog{Model: "q", Running: 4}, []*penstockv1.EngineState{engine("ok")}, 2); rest.LimitedBy != "" {
		t.Errorf("nothing waits: limited by %q, want nothing", rest.LimitedBy)
	}
}

func TestGRPCLanes(t *testing.T) {
	t.Parallel()
	d := serve(t, Config{}, newFake("node-1"))
	d.backlog = []registry.Backlog{{Model: "a", Requests: 1, Oldest: time.Second}, {Model: "b", Requests: 2, Oldest: time.Second}}
	d.longest = []registry.LaneBacklog{
		{Lane: lane.Key{Tier: "default", Type: "chat", Model: "b", Tenant: "acme"}, Requests: 2, Oldest: time.Second}, {Lane: lane.Key{Model: "a"}, Requests: 1},
	}
	client := penstockv1.NewAgentServiceClient(d.dial())
	r, err := client.Lanes(t.Context(), &penstockv1.LanesRequest{Top: 1})
	check(t, err)
	if l := r.Classes; len(l) != 1 || l[0].Model != "b" || l[0].BacklogRequests != 2 || l[0].LimitedBy != "no_engine" || l[0].OldestSeconds != 1 {
		t.Errorf("classes: got %v, want the longest of 2", l)
	}
	if l := r.Lanes; r.Total != 2 || len(l) != 1 || l[0].Tenant != "acme" || l[0].Type != "chat" || l[0].BacklogRequests != 2 || l[0].LimitedBy != "no_engine" || l[0].OldestSeconds != 1 {
		t.Errorf("lanes: got %v, want the longest of 2", r)
	}
	d.away = errors.New("store away")
	if r, err = client.Lanes(t.Context(), &penstockv1.LanesRequest{}); err != nil || r.Problem != "store away" || len(r.Classes) != 2 {
		t.Errorf("lanes without the store: got %v, %v; want the classes and the problem", r, err)
	}
}
