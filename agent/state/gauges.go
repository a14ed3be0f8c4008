package state

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/reason"
	"penstock/scheduler"
)

// Gauges are read from a State when a scrape comes, so that none can be older than
// the others.
type Gauges struct {
	look  func(time.Time) State
	all   []gauge
	state *prometheus.Desc
}

type gauge struct {
	desc *prometheus.Desc
	read func(*State) float64
}

// NewGauges reads from look at every scrape.
func NewGauges(look func(time.Time) State) *Gauges {
	g := &Gauges{look: look, state: prometheus.NewDesc("penstock_engine_state", "1 for the state the engine is in.", []string{"state"}, nil)}
	add := func(name, help string, read func(*State) float64) {
		g.all = append(g.all, gauge{prometheus.NewDesc("penstock_"+name, help, nil, nil), read})
	}
	add("engine_kv_usage_ratio", "KV cache in use, 0 to 1, as the last good sample said.", func(s *State) float64 { return s.View.KV })
	add("engine_running_requests", "Requests in the engine's batch.", func(s *State) float64 { return float64(s.View.Running) })
	add("engine_waiting_requests", "Requests that wait inside the engine.", func(s *State) float64 { return float64(s.View.Waiting) })
	add("engine_step_seconds", "Mean time of a decode step; 0 while not known.", func(s *State) float64 { return s.View.StepTime.Seconds() })
	add("engine_sample_age_seconds", "Age of the last good sample; 0 before the first.", func(s *State) float64 { return s.View.SampleAge.Seconds() })
	add("engine_prefill_tokens_per_second", "Prompt tokens the engine computes per second; 0 while not known.", func(s *State) float64 { return s.View.Prefill })
	add("engine_drain_tokens_per_second", "Expected tokens started per second while work waits; 0 while not known.", func(s *State) float64 { return s.View.DrainRate })
	add("engine_credit_tokens", "Tokens started here that the KV gauge does not show yet.", func(s *State) float64 { return float64(s.View.Credit) })
	add("engine_free_tokens", "KV tokens that may still be started.", func(s *State) float64 { return float64(s.View.Freeness) })
	add("kv_peak_ratio", "Forecast of the most KV cache that the requests which run will use at once, over all of it; 0 while its size is not known.", func(s *State) float64 { return s.View.Peak })
	add("inflight_requests", "Requests that run here.", func(s *State) float64 { return float64(s.View.Requests) })
	add("inflight_tokens", "Prompt and output tokens of the requests that run here.", func(s *State) float64 { return float64(s.View.Tokens) })
	add("room_requests", "Delivered heads held because capacity is about to come free.", func(s *State) float64 { return float64(len(s.Room)) })
	return g
}

// States are the values of the label state.
var States = []string{"fresh", "stale", "blind", "stuck", "asleep", "starting", "draining", "engine_down", "gpu_lost", "gpu_fault", "closed"}

// closed are the reasons for which nothing more starts, whatever it is.
var closed = []reason.Reason{reason.KVHigh, reason.KVForecast, reason.SeatsFull, reason.WaitingHigh}

// stateOf names the one state the engine is in. closed: usable, and full.
func stateOf(v *scheduler.View) string {
	switch {
	case v.Condition != reason.OK:
		return v.Condition.String()
	case slices.Contains(closed, v.Gate):
		return "closed"
	}
	return "fresh"
}

// Describe is prometheus.Collector.
func (g *Gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range g.all {
		ch <- one.desc
	}
	ch <- g.state
}

// Collect is prometheus.Collector.
func (g *Gauges) Collect(ch chan<- prometheus.Metric) {
	s := g.look(time.Now())
	for _, one := range g.all {
		ch <- prometheus.MustNewConstMetric(one.desc, prometheus.GaugeValue, one.read(&s))
	}
	now := stateOf(&s.View)
	for _, state := range States {
		v := 0.0
		if state == now {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(g.state, prometheus.GaugeValue, v, state)
	}
}
