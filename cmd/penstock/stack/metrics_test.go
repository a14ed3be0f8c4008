package stack

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/agent/health"
	"penstock/policy"
	"penstock/registry"
)

// TestLaneGauges: what waits and runs is shown for all tiers of the models there are,
// and beside it how many may run: by the ceiling, or where all share one lane by its
// concurrency, on each of two engines.
func TestLaneGauges(t *testing.T) {
	const tiers = "tiers: [{name: vip}, {name: batch, ceiling: 0.25}]\n"
	for name, c := range map[string]struct {
		lanes, vip, batch string
	}{
		"by ceiling":          {"", "200", "50"},
		"by concurrency":      {"lanes: {by: [tier, model, pool], default: {concurrency: 30}}", "60", "50"},
		"each lane its own":   {"lanes: {default: {concurrency: 30}}", "200", "50"},
		"below the ceiling's": {"lanes: {by: [tier, model, pool], patterns: [{tier: batch, concurrency: 3}]}", "200", "6"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Parse([]byte(tiers + c.lanes))
			if err != nil {
				t.Fatal(err)
			}
			row := registry.Backlog{Tier: "vip", Model: "m", Requests: 3, Tokens: 500, Bytes: 4000, Oldest: 1500 * time.Millisecond, Running: 7}
			one := health.Health{Models: []string{"m"}}
			g := newLaneGauges(func(time.Time) []registry.Backlog { return []registry.Backlog{row} }, func() []health.Health { return []health.Health{one, one} }, 100, func() *policy.Policy { return p })
			want := `
# HELP penstock_lane_backlog_bytes Bodies of the requests that wait, with what each is charged beside its body.
# TYPE penstock_lane_backlog_bytes gauge
penstock_lane_backlog_bytes{model="m",tier="batch"} 0
penstock_lane_backlog_bytes{model="m",tier="vip"} 4000
# HELP penstock_lane_backlog_oldest_seconds Age of the request that waits longest; 0 = none waits.
# TYPE penstock_lane_backlog_oldest_seconds gauge
penstock_lane_backlog_oldest_seconds{model="m",tier="batch"} 0
penstock_lane_backlog_oldest_seconds{model="m",tier="vip"} 1.5
# HELP penstock_lane_backlog_requests Requests that wait for their start.
# TYPE penstock_lane_backlog_requests gauge
penstock_lane_backlog_requests{model="m",tier="batch"} 0
penstock_lane_backlog_requests{model="m",tier="vip"} 3
# HELP penstock_lane_permits Requests that run (used), and that may run at once on the engines of the model, by the tier's ceiling or the concurrency of the one lane they share (total).
# TYPE penstock_lane_permits gauge
penstock_lane_permits{model="m",state="total",tier="batch"} ` + c.batch + `
penstock_lane_permits{model="m",state="total",tier="vip"} ` + c.vip + `
penstock_lane_permits{model="m",state="used",tier="batch"} 0
penstock_lane_permits{model="m",state="used",tier="vip"} 7
`
			if err := testutil.CollectAndCompare(g, strings.NewReader(want), "penstock_lane_backlog_bytes", "penstock_lane_backlog_oldest_seconds", "penstock_lane_backlog_requests", "penstock_lane_permits"); err != nil {
				t.Error(err)
			}
		})
	}
}
