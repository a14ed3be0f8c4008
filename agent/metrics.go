package agent

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/reason"
	"penstock/scheduler"
)

type metrics struct {
	decisions [scheduler.Drop + 1][256]prometheus.Counter // by Reason; nil where the pair is not expected
	rare      *prometheus.CounterVec                      // the vector behind decisions
	attempts  *prometheus.CounterVec
	suspended prometheus.Histogram
	sent      prometheus.Counter // connections closed on purpose
	released  prometheus.Counter // of them, seen to leave the engine
}

// newMetrics registers with reg, which carries the label node, and reads the
// gauges from look at every scrape.
func newMetrics(reg prometheus.Registerer, look func(now time.Time) State) (*metrics, error) {
	m := &metrics{
		rare: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_decisions_total", Help: "What delivered heads were told, and why.",
		}, []string{"action", "reason"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_attempts_total", Help: "Attempts to run a request here by how they ended, claims that were refused included.",
		}, []string{"reason"}),
		suspended: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_suspend_seconds", Help: "How long heads were given back for.",
			Buckets: []float64{.05, .1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8},
		}),
	}
	aborts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_engine_aborts_total",
		Help: "Running requests whose connection was closed on purpose (sent), and those the engine's gauges showed to be gone (freed).",
	}, []string{"event"})
	m.sent, m.released = aborts.WithLabelValues("sent"), aborts.WithLabelValues("freed")
	for _, r := range reason.All() {
		for a := scheduler.Start; a <= scheduler.Drop; a++ {
			if expected(a, r) {
				m.decisions[a][r] = m.rare.WithLabelValues(a.String(), r.String())
			}
		}
		if r >= reason.Aborted && r <= reason.UpstreamLost {
			m.attempts.WithLabelValues(r.String())
		}
	}
	return m, errors.Join(
		reg.Register(m.rare), reg.Register(m.attempts), reg.Register(m.suspended),
		reg.Register(aborts), reg.Register(newGauges(look)),
	)
}

// expected are the pairs that decisions show from the start.
func expected(a scheduler.Action, r reason.Reason) bool {
	switch a {
	case scheduler.Start:
		return r == reason.OK || r == reason.Probe
	case scheduler.Drop:
		return r == reason.Aborted || r == reason.DeadlinePassed || r == reason.TooLarge || r == reason.Overloaded
	case scheduler.Suspend:
		return r >= reason.KVHigh && r <= reason.GPUFault || r == reason.EngineDown
	}
	return r >= reason.KVHigh && r < reason.Stale
}

func (m *metrics) decided(v scheduler.Verdict) {
	if int(v.Action) < len(m.decisions) && m.decisions[v.Action][v.Reason] != nil {
		m.decisions[v.Action][v.Reason].Inc()
		return
	}
	m.rare.WithLabelValues(v.Action.String(), v.Reason.String()).Inc()
}

func (m *metrics) ended(r reason.Reason) { m.attempts.WithLabelValues(r.String()).Inc() }

func (m *metrics) freed(n int) { m.released.Add(float64(n)) }

// gauges are read from the agent's state when a scrape comes, so that none can be
// older than the others.
type gauges struct {
	look  func(time.Time) State
	all   []gauge
	state *prometheus.Desc
}

type gauge struct {
	desc *prometheus.Desc
	read func(*State) float64
}

func newGauges(look func(time.Time) State) *gauges {
	g := &gauges{look: look, state: prometheus.NewDesc("penstock_engine_state", "1 for the state the engine is in.", []string{"state"}, nil)}
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
	add("inflight_requests", "Requests that run here.", func(s *State) float64 { return float64(s.View.Requests) })
	add("inflight_tokens", "Prompt and output tokens of the requests that run here.", func(s *State) float64 { return float64(s.View.Tokens) })
	add("room_requests", "Delivered heads held because capacity is about to come free.", func(s *State) float64 { return float64(len(s.Room)) })
	return g
}

// states are the values of the label state.
var states = []string{"fresh", "stale", "blind", "stuck", "asleep", "starting", "draining", "engine_down", "closed"}

// stateOf names the one state the engine is in. closed: usable, and full.
func stateOf(v *scheduler.View) string {
	switch {
	case v.Condition != reason.OK:
		return v.Condition.String()
	case v.Gate == reason.KVHigh || v.Gate == reason.WaitingHigh:
		return "closed"
	}
	return "fresh"
}

func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range g.all {
		ch <- one.desc
	}
	ch <- g.state
}

func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	s := g.look(time.Now())
	for _, one := range g.all {
		ch <- prometheus.MustNewConstMetric(one.desc, prometheus.GaugeValue, one.read(&s))
	}
	now := stateOf(&s.View)
	for _, state := range states {
		v := 0.0
		if state == now {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(g.state, prometheus.GaugeValue, v, state)
	}
}
