package outcome

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/gateway/refuse"
	"penstock/gateway/route"
	"penstock/policy"
	"penstock/reason"
	"penstock/registry"
)

// maxModels bounds the model label; a fleet with more shows the rest as "other".
const maxModels = 100

// Metrics are a gateway's of its requests. Labels are bounded whatever clients send.
// Safe for concurrent use.
type Metrics struct {
	requests *prometheus.CounterVec
	queued   *prometheus.HistogramVec
	ttft     *prometheus.HistogramVec
	tpot     prometheus.Histogram
	service  *prometheus.HistogramVec
	estimate *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	aborts   *prometheus.CounterVec
	moves    *prometheus.CounterVec
	filters  *prometheus.CounterVec
	open     prometheus.Gauge

	mu     sync.Mutex
	tiers  []string                            // all there have been, at most maxTiers; guarded by mu
	models map[string]map[string]*modelMetrics // by model and tier; guarded by mu; at most maxModels and "other"
}

// modelMetrics are the children of one model and tier, resolved once.
type modelMetrics struct {
	requests map[Outcome]prometheus.Counter // never written after it is made
	service  prometheus.Observer
	queued   prometheus.Observer // of the tier, all models
	ttft     prometheus.Observer // as queued
}

// New registers the metrics; status is the table of refusals, tiers are those of the
// policy there is.
func New(reg prometheus.Registerer, status refuse.Table, tiers []string) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_requests_total", Help: "Finished requests by outcome."}, []string{"tier", "model", "outcome"}),
		queued:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_queue_seconds", Help: "From the request's arrival to its start on an engine.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}, []string{"tier"}),
		ttft:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_ttft_seconds", Help: "From a stream's arrival to its first event.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 15)}, []string{"tier"}),
		tpot:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "penstock_tpot_seconds", Help: "Mean time between tokens of a stream, after its first.", Buckets: prometheus.ExponentialBuckets(0.002, 1.6, 14)}),
		service:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_service_seconds", Help: "From the start on an engine to the end of the answer.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14)}, []string{"tier", "model"}),
		estimate: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_estimate_ratio", Help: "Tokens of an answered request as estimated from what was known before it, over those counted; 1 = right.", Buckets: []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10}}, []string{"of"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_refusals_total", Help: "Requests that ended without an answer, by status and reason."}, []string{"status", "reason"}),
		aborts:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_aborts_total", Help: "Requests whose client went away, by how far they were and what the cancel found."}, []string{"stage", "outcome"}),
		moves:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_reroutes_total", Help: "Requests sent on to another lane, by a reroute of the policy or into a lower tier, and the trouble their lane had with them."}, []string{"move", "trouble"}),
		filters:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_filtered_total", Help: "Requests that a filter of the policy was asked about, by what became of them there."}, []string{"outcome"}),
		open:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_open_requests", Help: "Requests a client waits for now."}),
		models:   map[string]map[string]*modelMetrics{},
	}
	for _, why := range refuse.Reasons() {
		r := status.Rule(&refuse.Refusal{Reason: why})
		m.refusals.WithLabelValues(strconv.Itoa(r.Status), why.String())
	}
	for _, stage := range []registry.State{registry.Queued, registry.Running, registry.Streaming} {
		for _, found := range []Abort{AbortCanceled, AbortOver, AbortError} {
			m.aborts.WithLabelValues(stageName(stage), string(found))
		}
	}
	for _, of := range []string{estimatePrompt, estimateOutput} {
		m.estimate.WithLabelValues(of)
	}
	for _, trouble := range policy.Classes() {
		m.moves.WithLabelValues(route.Reroute.String(), trouble.String())
	}
	for _, trouble := range []policy.Class{policy.Saturated, policy.LaneFull} {
		m.moves.WithLabelValues(route.Downgrade.String(), trouble.String())
	}
	for _, o := range []Filter{FilterPassed, FilterStopped, FilterFailed} {
		m.filters.WithLabelValues(string(o))
	}
	m.models[otherModel] = map[string]*modelMetrics{}
	m.AddTiers(tiers)
	for _, c := range []prometheus.Collector{m.requests, m.queued, m.ttft, m.tpot, m.service, m.estimate, m.refusals, m.aborts, m.moves, m.filters, m.open} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// otherModel stands for models no engine is known for, and for tiers beyond maxTiers.
const otherModel = "other"

// maxTiers bounds the tier label over all policies there have been since the start.
const maxTiers = 64

// AddTiers makes the series of tiers, for all models there are and will be.
func (m *Metrics) AddTiers(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, tier := range names {
		if slices.Contains(m.tiers, tier) || len(m.tiers) >= maxTiers {
			continue
		}
		m.tiers = append(m.tiers, tier)
		for model, byTier := range m.models {
			byTier[tier] = m.series(tier, model)
		}
	}
}

// model returns a tier's children for a model the directory knows; callers pass
// otherModel for any other name, which a client may have made up.
func (m *Metrics) model(name, tier string) *modelMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	byTier := m.models[name]
	if byTier == nil && len(m.models) > maxModels {
		byTier = m.models[otherModel]
	} else if byTier == nil {
		byTier = map[string]*modelMetrics{}
		for _, t := range m.tiers {
			byTier[t] = m.series(t, name)
		}
		m.models[name] = byTier
	}
	if mm := byTier[tier]; mm != nil {
		return mm
	}
	if byTier[otherModel] == nil {
		byTier[otherModel] = m.series(otherModel, name)
	}
	return byTier[otherModel]
}

// series makes the children of one tier and model.
func (m *Metrics) series(tier, model string) *modelMetrics {
	mm := &modelMetrics{
		requests: map[Outcome]prometheus.Counter{}, service: m.service.WithLabelValues(tier, model),
		queued: m.queued.WithLabelValues(tier), ttft: m.ttft.WithLabelValues(tier),
	}
	for _, o := range []Outcome{Succeeded, Rejected, Refused, Expired, Failed, Aborted} {
		mm.requests[o] = m.requests.WithLabelValues(tier, model, string(o))
	}
	return mm
}

// Opened counts a request that arrives, Closed one that has its outcome.
func (m *Metrics) Opened() { m.open.Inc() }

// Closed is the other end of Opened.
func (m *Metrics) Closed() { m.open.Dec() }

// Request is a request that has ended.
type Request struct {
	Model  string // "" = one that no engine is known for
	Tier   string
	Status int
	Reason reason.Reason
	// Of a request that bytes of an answer came for; First is zero for any other.
	Stream         bool
	Tokens         int           // of one sequence
	Queued         time.Duration // in its lane
	First, Latest  time.Time
	Arrived, Ended time.Time
}

// Finished counts r and returns its outcome.
func (m *Metrics) Finished(r *Request) Outcome {
	name := r.Model
	if name == "" {
		name = otherModel
	}
	end, model := of(r.Reason), m.model(name, r.Tier)
	model.requests[end].Inc()
	if end != Succeeded && end != Aborted {
		m.Refused(r.Status, r.Reason)
	}
	if r.First.IsZero() {
		return end
	}
	model.queued.Observe(r.Queued.Seconds())
	model.service.Observe(max(r.Ended.Sub(r.Arrived)-r.Queued, 0).Seconds())
	if r.Stream {
		model.ttft.Observe(r.First.Sub(r.Arrived).Seconds())
		if r.Tokens > 1 && r.Reason == reason.Finished {
			m.tpot.Observe(r.Latest.Sub(r.First).Seconds() / float64(r.Tokens-1))
		}
	}
	return end
}

// Missed counts how far an estimate was off, as estimated over counted tokens; 0 = not
// known.
func (m *Metrics) Missed(prompt, output float64) {
	if prompt > 0 {
		m.estimate.WithLabelValues(estimatePrompt).Observe(prompt)
	}
	if output > 0 {
		m.estimate.WithLabelValues(estimateOutput).Observe(output)
	}
}

// Refused counts a call that ended without an answer and was no request for a model;
// Finished counts those that were.
func (m *Metrics) Refused(status int, why reason.Reason) {
	m.refusals.WithLabelValues(strconv.Itoa(status), why.String()).Inc()
}

// Aborted counts a request whose client went away, by how far it was.
func (m *Metrics) Aborted(stage registry.State, found Abort) {
	m.aborts.WithLabelValues(stageName(stage), string(found)).Inc()
}

// Moved counts a request that was sent on to another lane.
func (m *Metrics) Moved(move route.Move, trouble policy.Class) {
	m.moves.WithLabelValues(move.String(), trouble.String()).Inc()
}

// Filtered counts what a filter made of a request.
func (m *Metrics) Filtered(f Filter) { m.filters.WithLabelValues(string(f)).Inc() }
