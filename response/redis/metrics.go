package redis

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type writerMetrics struct {
	sent, repeated         prometheus.Counter // pipelines
	size, accepted         prometheus.Histogram
	full, late, gone, left prometheus.Counter // events that did not reach Redis
}

// newWriterMetrics registers with reg; buffered is read at every scrape.
func newWriterMetrics(reg prometheus.Registerer, buffered func() float64) (*writerMetrics, error) {
	m := &writerMetrics{
		size: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_response_pipeline_events", Help: "Events that went to Redis in one pipeline.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}),
		accepted: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_response_accept_seconds", Help: "From Append until Redis had the event.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 2, 10, 30},
		}),
	}
	pipelines := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_response_pipelines_total", Help: "Pipelines to Redis: accepted, or to be repeated since they failed or timed out.",
	}, []string{"result"})
	m.sent, m.repeated = pipelines.WithLabelValues("accepted"), pipelines.WithLabelValues("repeated")
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_response_dropped_total",
		Help: "Events that did not reach Redis: an attempt's buffer was full, nothing was accepted for too long, the mailbox was gone, the process ended.",
	}, []string{"reason"})
	m.full, m.late = dropped.WithLabelValues("full"), dropped.WithLabelValues("late")
	m.gone, m.left = dropped.WithLabelValues("gone"), dropped.WithLabelValues("ended")
	bytes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_response_buffered_bytes", Help: "Bytes of events that Redis has not accepted yet.",
	}, buffered)
	return m, errors.Join(reg.Register(m.size), reg.Register(m.accepted), reg.Register(pipelines), reg.Register(dropped), reg.Register(bytes))
}

type readerMetrics struct {
	events, malformed, failed, recreated prometheus.Counter
	size                                 prometheus.Histogram
}

// newReaderMetrics registers with reg; away is read at every scrape.
func newReaderMetrics(reg prometheus.Registerer, away func() float64) (*readerMetrics, error) {
	m := &readerMetrics{
		events:    prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_mailbox_events_total", Help: "Events read from the mailbox."}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_mailbox_malformed_total", Help: "Entries of the mailbox that are no event of a known version."}),
		failed:    prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_mailbox_read_failures_total", Help: "Reads and renewals that Redis did not answer."}),
		recreated: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_mailbox_recreated_total", Help: "Streams found missing: Redis lost its data or was out of reach too long."}),
		size: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_mailbox_read_events", Help: "Events of one read.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
		}),
	}
	up := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_mailbox_streams_away", Help: "Streams of the mailbox that cannot be read now.",
	}, away)
	return m, errors.Join(reg.Register(m.events), reg.Register(m.malformed), reg.Register(m.failed), reg.Register(m.recreated), reg.Register(m.size), reg.Register(up))
}
