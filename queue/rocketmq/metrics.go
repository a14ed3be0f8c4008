package rocketmq

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label cause of penstock_broker_failures_total.
const (
	failureAck       = "ack_refused" // the library would have acknowledged a Suspend
	failureLease     = "lease_lost"  // a result or renewal came after its lease
	failureMalformed = "malformed"   // a message that cannot be read
	failureVersion   = "version"     // a message of an unknown format version
	failurePanic     = "panic"       // of a handler
	failureSubscribe = "subscribe"
	failureRebuild   = "rebuild" // the client had to be replaced
)

type consumerMetrics struct {
	deliveries *prometheus.CounterVec
	failures   *prometheus.CounterVec
	topics     prometheus.Gauge
	up         prometheus.Gauge

	acked, suspended prometheus.Counter
}

func newConsumerMetrics(reg prometheus.Registerer) (*consumerMetrics, error) {
	m := &consumerMetrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_broker_deliveries_total", Help: "Deliveries from the broker by what the agent answered.",
		}, []string{"result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_broker_failures_total", Help: "What went wrong between agent and broker, by cause.",
		}, []string{"cause"}),
		topics: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_broker_subscribed_topics", Help: "LiteTopics (lane shards) this agent is subscribed to.",
		}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_broker_consumer_up", Help: "1 while deliveries can come.",
		}),
	}
	m.acked, m.suspended = m.deliveries.WithLabelValues("ack"), m.deliveries.WithLabelValues("suspend")
	for _, cause := range []string{failureAck, failureLease, failureMalformed, failureVersion, failurePanic, failureSubscribe, failureRebuild} {
		m.failures.WithLabelValues(cause)
	}
	return m, register(reg, m.deliveries, m.failures, m.topics, m.up)
}

// Values of the label outcome of penstock_broker_publish_seconds.
var outcomes = []string{"sent", "away", "refused"}

type producerMetrics struct {
	seconds *prometheus.HistogramVec
	up      prometheus.Gauge
}

func newProducerMetrics(reg prometheus.Registerer) (*producerMetrics, error) {
	m := &producerMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_broker_publish_seconds", Help: "Time to hand a request to the broker, by outcome.",
			Buckets: []float64{.001, .002, .004, .008, .016, .032, .064, .128, .256, .5, 1, 2, 4},
		}, []string{"outcome"}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_broker_producer_up", Help: "1 while requests can be published.",
		}),
	}
	for _, o := range outcomes {
		m.seconds.WithLabelValues(o)
	}
	return m, register(reg, m.seconds, m.up)
}

func register(reg prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
