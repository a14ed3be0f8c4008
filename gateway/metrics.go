package gateway

import (
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/gateway/admission"
	"penstock/gateway/refuse"
	"penstock/gateway/route"
	"penstock/policy"
	"penstock/reason"
	"penstock/registry"
)

// outcome is the metric label for how a request ended; the reason is in the log.
type outcome string

const (
	succeeded outcome = "ok"
	rejected  outcome = "rejected" // the request itself is wrong: 4xx, by us or the engine
	refused   outcome = "refused"  // 429 or 503 before it was queued
	expired   outcome = "expired"  // its start deadline passed
	failed    outcome = "failed"   // engines, lanes or records failed it
	aborted   outcome = "aborted"  // the client went away or did not read
)

// Outcomes of an abort: whether the cancel reached the record.
const (
	abortCanceled = "canceled"
	abortOver     = "over"  // the request had ended meanwhile
	abortError    = "error" // the record store did not answer
)

// What an estimate is of.
const (
	estimatePrompt = "prompt"
	estimateOutput = "output"
)

// maxModels bounds the model label; a fleet with more shows the rest as "other".
const maxModels = 100

type metrics struct {
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
	requests map[outcome]prometheus.Counter // never written after it is made
	service  prometheus.Observer
	queued   prometheus.Observer // of the tier, all models
	ttft     prometheus.Observer // as queued
}

func newMetrics(reg prometheus.Registerer, cfg *Config, tiers []string) (*metrics, error) {
	m := &metrics{
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
		r := refuse.Table{Saturated: cfg.SaturatedStatus}.Rule(&refuse.Refusal{Reason: why})
		m.refusals.WithLabelValues(strconv.Itoa(r.Status), why.String())
	}
	for _, stage := range []registry.State{registry.Queued, registry.Running, registry.Streaming} {
		for _, found := range []string{abortCanceled, abortOver, abortError} {
			m.aborts.WithLabelValues(stageName(stage), found)
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
	for _, o := range []string{filterPassed, filterStopped, filterFailed} {
		m.filters.WithLabelValues(o)
	}
	m.models[otherModel] = map[string]*modelMetrics{}
	m.addTiers(tiers)
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

// addTiers makes the series of tiers, for all models there are and will be.
func (m *metrics) addTiers(names []string) {
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
func (m *metrics) model(name, tier string) *modelMetrics {
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
func (m *metrics) series(tier, model string) *modelMetrics {
	mm := &modelMetrics{
		requests: map[outcome]prometheus.Counter{}, service: m.service.WithLabelValues(tier, model),
		queued: m.queued.WithLabelValues(tier), ttft: m.ttft.WithLabelValues(tier),
	}
	for _, o := range []outcome{succeeded, rejected, refused, expired, failed, aborted} {
		mm.requests[o] = m.requests.WithLabelValues(tier, model, string(o))
	}
	return mm
}

// missed counts how far an estimate was off.
func (m *metrics) missed(by admission.Missed) {
	if by.Prompt > 0 {
		m.estimate.WithLabelValues(estimatePrompt).Observe(by.Prompt)
	}
	if by.Output > 0 {
		m.estimate.WithLabelValues(estimateOutput).Observe(by.Output)
	}
}

// refused counts a request that ended without an answer.
func (m *metrics) refused(status int, why reason.Reason) {
	m.refusals.WithLabelValues(strconv.Itoa(status), why.String()).Inc()
}

// stageName is the label for how far an aborted request was.
func stageName(s registry.State) string {
	switch s {
	case registry.Streaming:
		return "streaming"
	case registry.Running:
		return "running"
	default:
		return "queued"
	}
}

// outcomeOf sorts a refusal's reason into an outcome.
func outcomeOf(why reason.Reason) outcome {
	switch why {
	case reason.Finished:
		return succeeded
	case reason.BadRequest, reason.TooLarge, reason.EngineRefused, reason.NoKey, reason.Forbidden, reason.UnknownModel, reason.NotFound, reason.BodyTooLarge, reason.Filtered:
		return rejected
	case reason.RateLimited, reason.BudgetSpent, reason.Overloaded, reason.LaneFull, reason.NoEngine, reason.Draining, reason.Starting:
		return refused
	case reason.DeadlinePassed:
		return expired
	case reason.ClientGone, reason.ClientSlow, reason.Aborted:
		return aborted
	default:
		return failed
	}
}
