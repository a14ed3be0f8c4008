package scraper

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	seconds prometheus.Histogram
	errors  [problemEnd]prometheus.Counter // by Problem
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "penstock_engine_scrape_seconds",
		Help:    "Time to read the engine's metrics page, failed reads included.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
	})}
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_engine_scrape_errors_total",
		Help: "Metrics pages that gave no sample, and disagreements found by the contract check.",
	}, []string{"reason"})
	for p := Problem(1); p < problemEnd; p++ {
		m.errors[p] = failed.WithLabelValues(p.String())
	}
	return m, errors.Join(reg.Register(m.seconds), reg.Register(failed))
}
