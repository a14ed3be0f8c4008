package stack

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"penstock/agent/health"
	"penstock/policy"
	"penstock/registry"
)

// newMetrics is a registry with the process's own metrics.
func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}

// laneGauges shows what waits and runs per tier and model. It reads at every
// scrape, so that no gauge can be older than another. Its models are those of
// engines: a client cannot make one up.
type laneGauges struct {
	backlog func(now time.Time) []registry.Backlog
	engines func() []health.Health
	each    int // requests one engine runs at most
	policy  func() *policy.Policy

	waiting, bytes, tokens, oldest, permits *prometheus.Desc
}

func newLaneGauges(backlog func(time.Time) []registry.Backlog, engines func() []health.Health, each int, policy func() *policy.Policy) *laneGauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_lane_"+name, help, append([]string{"tier", "model"}, labels...), nil)
	}
	return &laneGauges{
		backlog: backlog, engines: engines, each: each, policy: policy,
		waiting: desc("backlog_requests", "Requests that wait for their start."),
		bytes:   desc("backlog_bytes", "Bodies of the requests that wait, with what each is charged beside its body."),
		tokens:  desc("backlog_tokens", "Expected tokens, prompt and output, of the requests that wait."),
		oldest:  desc("backlog_oldest_seconds", "Age of the request that waits longest; 0 = none waits."),
		permits: desc("permits", "Requests that run (used), and that may run at once on the engines of the model, by the tier's ceiling or the concurrency of the one lane they share (total).", "state"),
	}
}

func (g *laneGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.waiting, g.bytes, g.tokens, g.oldest, g.permits} {
		ch <- d
	}
}

func (g *laneGauges) Collect(ch chan<- prometheus.Metric) {
	engines := map[string]int{} // by model
	for _, h := range g.engines() {
		for _, model := range h.Models {
			engines[model]++
		}
	}
	rows, p := g.backlog(time.Now()), g.policy()
	type lanes struct{ tier, model string }
	shown := map[lanes]bool{}
	for _, row := range rows {
		shown[lanes{row.Tier, row.Model}] = true
	}
	for model := range engines {
		for _, t := range p.Tiers {
			if !shown[lanes{t.Name, model}] {
				rows = append(rows, registry.Backlog{Tier: t.Name, Model: model})
			}
		}
	}
	for _, row := range rows {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{row.Tier, row.Model}, labels...)...)
		}
		gauge(g.waiting, float64(row.Requests))
		gauge(g.bytes, float64(row.Bytes))
		gauge(g.tokens, float64(row.Tokens))
		gauge(g.oldest, row.Oldest.Seconds())
		gauge(g.permits, float64(row.Running), "used")
		gauge(g.permits, float64(g.total(p, row.Tier, row.Model)*engines[row.Model]), "total")
	}
}

// total is how many requests of a tier and model may run on one engine.
func (g *laneGauges) total(p *policy.Policy, tier, model string) int {
	most := int(math.Ceil(p.Tiers[p.Rank(tier)].Ceiling * float64(g.each)))
	if n := p.Permits(tier, model); n > 0 {
		most = min(most, n)
	}
	return most
}
