package outcome

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/gateway/refuse"
	"penstock/reason"
)

func newTestMetrics(t *testing.T) (*Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := New(reg, refuse.Table{Saturated: 429}, []string{"default"})
	if err != nil {
		t.Fatal(err)
	}
	return m, reg
}

// TestLabelsAreBounded: models and tiers beyond the bounds share the series of "other".
func TestLabelsAreBounded(t *testing.T) {
	m, reg := newTestMetrics(t)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	before := testutil.CollectAndCount(m.requests)
	for i := range 3 * maxModels {
		m.model(fmt.Sprintf("short %d", i%32), "default")
		m.model(fmt.Sprintf("model %d", i), "default")
	}
	if got := testutil.CollectAndCount(m.requests); got != before+maxModels*6 {
		t.Errorf("%d series, want those of %d models more than %d", got, maxModels, before)
	}
	for i := range 2 * maxTiers {
		m.AddTiers([]string{fmt.Sprint("tier ", i)})
	}
	if got := testutil.CollectAndCount(m.ttft); got != maxTiers {
		t.Errorf("%d series by tier, want %d", got, maxTiers)
	}
	if first, second := m.model("q", "late"), m.model("q", "later"); first != second {
		t.Error("tiers beyond the bound have series of their own")
	}
}

// TestFinished: what a request's end counts as, and what is measured of its answer.
func TestFinished(t *testing.T) {
	begun := time.Unix(1000, 0)
	answered := Request{
		Model: "q", Tier: "default", Status: 200, Reason: reason.Finished, Stream: true, Tokens: 11, Queued: time.Second,
		Arrived: begun, First: begun.Add(2 * time.Second), Latest: begun.Add(3 * time.Second), Ended: begun.Add(4 * time.Second),
	}
	plain := answered
	plain.Stream = false
	broken := answered
	broken.Status, broken.Reason = 503, reason.UpstreamLost
	for _, c := range []struct {
		name                          string
		r                             Request
		want                          Outcome
		refusals, answers, ttft, tpot int
	}{
		{"a stream", answered, Succeeded, 0, 1, 1, 1},
		{"a plain answer", plain, Succeeded, 0, 1, 0, 0},
		{"a broken stream", broken, Failed, 1, 1, 1, 0},
		{"refused", Request{Tier: "default", Status: 429, Reason: reason.Overloaded}, Refused, 1, 0, 0, 0},
		{"wrong", Request{Tier: "default", Status: 400, Reason: reason.BadRequest}, Rejected, 1, 0, 0, 0},
		{"late", Request{Tier: "default", Status: 504, Reason: reason.DeadlinePassed}, Expired, 1, 0, 0, 0},
		{"gone", Request{Tier: "default", Status: 499, Reason: reason.ClientGone}, Aborted, 0, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, reg := newTestMetrics(t)
			model := c.r.Model
			if model == "" {
				model = otherModel
			}
			if got := m.Finished(&c.r); got != c.want {
				t.Errorf("outcome %q, want %q", got, c.want)
			}
			if n := testutil.ToFloat64(m.requests.WithLabelValues("default", model, string(c.want))); n != 1 {
				t.Errorf("%v requests counted for %s as %s, want 1", n, model, c.want)
			}
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for _, f := range families {
				for _, s := range f.GetMetric() {
					got[f.GetName()] += int(s.GetCounter().GetValue()) + int(s.GetHistogram().GetSampleCount())
				}
			}
			for name, want := range map[string]int{
				"penstock_refusals_total": c.refusals, "penstock_queue_seconds": c.answers, "penstock_service_seconds": c.answers,
				"penstock_ttft_seconds": c.ttft, "penstock_tpot_seconds": c.tpot,
			} {
				if got[name] != want {
					t.Errorf("%s: %d, want %d", name, got[name], want)
				}
			}
		})
	}
}
