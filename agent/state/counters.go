package state

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/reason"
	"penstock/scheduler"
)

// Counters are what an agent counts. They are safe for concurrent use.
type Counters struct {
	Sent      prometheus.Counter   // connections of running requests closed on purpose
	Freed     prometheus.Counter   // of them, seen to leave the engine
	Suspended prometheus.Histogram // how long heads were given back for, in seconds

	decisions [scheduler.Drop + 1][256]prometheus.Counter // by Reason; nil where the pair is not expected
	rare      *prometheus.CounterVec                      // the vector behind decisions
	attempts  *prometheus.CounterVec
}

// NewCounters registers with reg, which carries the label node, together with the
// Gauges of look.
func NewCounters(reg prometheus.Registerer, look func(now time.Time) State) (*Counters, error) {
	m := &Counters{
		rare: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_decisions_total", Help: "What delivered heads were told, and why.",
		}, []string{"action", "reason"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_attempts_total", Help: "Attempts to run a request here by how they ended, claims that were refused included.",
		}, []string{"reason"}),
		Suspended: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_suspend_seconds", Help: "How long heads were given back for.",
			Buckets: []float64{.05, .1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8},
		}),
	}
	aborts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_engine_aborts_total",
		Help: "Running requests whose connection was closed on purpose (sent), and those the engine's gauges showed to be gone (freed).",
	}, []string{"event"})
	m.Sent, m.Freed = aborts.WithLabelValues("sent"), aborts.WithLabelValues("freed")
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
		reg.Register(m.rare), reg.Register(m.attempts), reg.Register(m.Suspended),
		reg.Register(aborts), reg.Register(NewGauges(look)),
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
	return r >= reason.KVHigh && r < reason.LaneLimit
}

// Decided counts what a head was told.
func (m *Counters) Decided(v scheduler.Verdict) {
	if int(v.Action) < len(m.decisions) && m.decisions[v.Action][v.Reason] != nil {
		m.decisions[v.Action][v.Reason].Inc()
		return
	}
	m.rare.WithLabelValues(v.Action.String(), v.Reason.String()).Inc()
}

// Ended counts how an attempt ended.
func (m *Counters) Ended(r reason.Reason) { m.attempts.WithLabelValues(r.String()).Inc() }
