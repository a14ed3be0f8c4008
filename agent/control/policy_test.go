package control

import (
	"testing"
	"time"

	"penstock/fleet"
	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
	"penstock/registry"
)

// TestPolicies: Cluster says which policy each engine and gateway goes by, as far as it
// is known, and GetState that of its own.
func TestPolicies(t *testing.T) {
	d := wire(t, Config{}, newFake("own").up())
	now := time.Now()
	row := func(node, hash string, age time.Duration) fleet.Row {
		return fleet.Row{Engine: fleet.ID(node), Node: node, State: reason.OK, Policy: fleet.Policy(hash), At: now.Add(-age)}
	}
	d.engines = []registry.Engine{{Node: "listed", State: reason.OK, Seen: now}}
	d.rows = []fleet.Row{row("peer", "b2b2b2b2b2b2b2b2", 0), row("flags", "", 0)}
	s := service{Server: d.grpc}
	before, err := s.Cluster(t.Context(), &penstockv1.ClusterRequest{})
	check(t, err)
	if before.GetPolicy() != nil || before.GetGateways() != nil {
		t.Errorf("policy %v, gateways %v of who knows neither; want nothing", before.GetPolicy(), before.GetGateways())
	}
	d.grpc.deps.Policy = func() Policy {
		return Policy{Source: "redis", Hash: "a1a1a1a1a1a1a1a1", Newest: "b2b2b2b2b2b2b2b2", Age: 7, Problem: "line 1"}
	}
	d.grpc.deps.Gateways = func() []fleet.Row {
		return []fleet.Row{row("gateway@b", "b2b2b2b2b2b2b2b2", time.Second), row("gateway@a", "", time.Second), row("gateway@c", "", time.Minute)}
	}
	answer, err := s.Cluster(t.Context(), &penstockv1.ClusterRequest{})
	check(t, err)
	got := map[string]string{}
	for _, e := range answer.GetEngines() {
		got[e.GetNode()] = e.GetPolicy()
	}
	for _, g := range answer.GetGateways() {
		got[g.GetNode()] = g.GetPolicy()
	}
	want := map[string]string{"own": "a1a1a1a1", "peer": "b2b2b2b2", "flags": "none", "listed": "", "gateway@a": "none", "gateway@b": "b2b2b2b2"}
	for node, policy := range want {
		if got[node] != policy {
			t.Errorf("%s goes by %q, want %q", node, got[node], policy)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v: a gateway that is gone is none", got, want)
	}
	if p := answer.GetPolicy(); p.GetSource() != "redis" || p.GetNewest() != "b2b2b2b2b2b2b2b2" || p.GetProblem() != "line 1" || p.GetAgeSeconds() != 7 {
		t.Errorf("policy %v", p)
	}
	state, err := s.GetState(t.Context(), &penstockv1.GetStateRequest{})
	check(t, err)
	if p := state.GetEngines()[0].GetPolicy(); p != "a1a1a1a1" {
		t.Errorf("GetState says policy %q", p)
	}
}
