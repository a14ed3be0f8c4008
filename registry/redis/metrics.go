package redis

import (
	"errors"
	"iter"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

type opMetrics struct {
	seconds prometheus.Observer
	errors  [kinds]prometheus.Counter
}

type metrics struct {
	ops     map[string]*opMetrics
	breaker prometheus.Gauge
}

// newMetrics registers with reg, for calls of scripts; offset is read at every scrape, in seconds.
func newMetrics(reg prometheus.Registerer, scripts iter.Seq[string], offset func() float64) (*metrics, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "penstock_registry_seconds", Help: "Calls to the record store, failed ones included, those the breaker refused not.",
		Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1},
	}, []string{"op"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_registry_errors_total", Help: "Calls to the record store that failed, by what is to blame.",
	}, []string{"op", "kind"})
	m := &metrics{
		ops: map[string]*opMetrics{},
		breaker: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_registry_breaker_state", Help: "0 the record store answers, 1 it is tried again, 2 it is away and calls fail at once.",
		}),
	}
	for _, op := range slices.AppendSeq([]string{"lookup"}, scripts) {
		o := &opMetrics{seconds: seconds.WithLabelValues(op)}
		for k := failedNot + 1; k < kinds; k++ {
			o.errors[k] = failed.WithLabelValues(op, kindNames[k])
		}
		m.ops[op] = o
	}
	clock := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_registry_clock_offset_seconds", Help: "The record store's clock minus this host's.",
	}, offset)
	return m, errors.Join(reg.Register(seconds), reg.Register(failed), reg.Register(m.breaker), reg.Register(clock))
}
