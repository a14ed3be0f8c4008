package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/fleet"
	"penstock/gateway/headers"
	"penstock/policy"
	"penstock/reason"
	"penstock/response"
)

// tiered sets three tiers, of which batch has relief when relief says so.
func tiered(relief *uint16) func(*Config, *Deps) {
	return func(_ *Config, d *Deps) {
		d.Policy = policy.Default([]policy.Tier{
			{Name: "vip", Ceiling: 1, SLOTTFT: time.Second}, {Name: "normal", Ceiling: 1}, {Name: "batch", Ceiling: 1, SLOTTFT: time.Minute, SLOTPOT: time.Second},
		}, "")
		d.Rows = func() []fleet.Row {
			return []fleet.Row{{Node: "n1", Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, Relief: *relief, At: time.Now()}}
		}
	}
}

func TestOwnLimits(t *testing.T) {
	p, err := policy.Parse([]byte(`
tiers: [{name: vip, slo-ttft: 1s}, {name: normal}, {name: batch, slo-ttft: 1m, slo-tpot: 1s}]
tenants:
  quick: {deadline: 5s, max-deadline: 10s}
  short: {max-deadline: 10s}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, tenant string
		tier         int
		want         headers.Limits
		most         time.Duration
	}{
		{"the tier's", "x", 0, headers.Limits{Deadline: 30 * time.Second, TTFT: time.Second, TPOT: 100 * time.Millisecond}, 10 * time.Minute},
		{"the gateway's", "x", 1, headers.Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond}, 10 * time.Minute},
		{"the deadline is not below slo_ttft", "x", 2, headers.Limits{Deadline: time.Minute, TTFT: time.Minute, TPOT: time.Second}, 10 * time.Minute},
		{"the tenant's", "quick", 2, headers.Limits{Deadline: 5 * time.Second, TTFT: time.Minute, TPOT: time.Second}, 10 * time.Second},
		{"at most the tenant's longest", "short", 1, headers.Limits{Deadline: 10 * time.Second, TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond}, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			who, _ := p.Tenant(c.tenant)
			x := &exchange{g: &Gateway{cfg: DefaultConfig()}, policy: p, who: who, class: policy.Decision{Tier: c.tier}}
			if got := x.ownLimits(); got != c.want || x.maxDeadline() != c.most {
				t.Errorf("got %+v, %v; want %+v, %v", got, x.maxDeadline(), c.want, c.most)
			}
		})
	}
}

// TestTierTravels: the tier is that of the lane, its limits and its relief those of
// the message, its name the label of its metrics, and who waited in vain is told.
func TestTierTravels(t *testing.T) {
	var relief uint16
	s := newStage(t, tiered(&relief)).serve()
	resp := make(chan *http.Response, 1)
	ask := func(tier string) {
		go func() { resp <- s.post(plainBody, "X-Penstock-Tier", tier) }()
	}
	ask("vip")
	n := s.start()
	if n.m.Lane.Tier != "vip" || n.m.SLOTTFT != time.Second || n.m.Deadline.Sub(n.m.Opened) != 30*time.Second {
		t.Errorf("message %+v, want tier vip and its limits", n.m)
	}
	n.done(`{}`)
	(<-resp).Body.Close()
	relief = 0b100
	ask("batch")
	n = s.start()
	if n.m.Lane.Tier != "batch" || n.m.Deadline.Sub(n.m.Opened) != 4*time.Minute || n.m.SLOTTFT != 4*time.Minute {
		t.Errorf("under relief: lane %v, deadline %v, slo %v; want batch, 4m, 4m", n.m.Lane, n.m.Deadline.Sub(n.m.Opened), n.m.SLOTTFT)
	}
	n.finish(response.Event{Kind: response.Dropped, Reason: reason.DeadlinePassed})
	r := <-resp
	if text, _, _ := errorOf(t, readAll(t, r.Body)); r.StatusCode != 504 || !strings.HasPrefix(text, "The service is busy: 0 requests ahead when this one came") || !strings.Contains(text, "within 240 s") {
		t.Errorf("%d %q, want 504 and how busy it was", r.StatusCode, text)
	}
	if r := s.post(plainBody, "X-Penstock-Tier", "gold"); r.StatusCode != 400 {
		t.Errorf("an unknown tier: status %d, want 400", r.StatusCode)
	}
	for _, tier := range []string{"vip", "batch"} {
		outcome := map[string]string{"vip": "ok", "batch": "expired"}[tier]
		eventually(t, "the request is counted", func() bool {
			return counter(t, s, "penstock_requests_total", "tier", tier, "model", "q", "outcome", outcome) == 1
		})
	}
	if got := counter(t, s, "penstock_requests_total", "tier", "normal", "model", "q", "outcome", "ok"); got != 0 {
		t.Errorf("tier normal: %v, want the series at 0", got)
	}
}
