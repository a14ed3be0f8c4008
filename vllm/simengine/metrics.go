package simengine

import (
	"slices"
	"strconv"
	"time"

	"penstock/sim/engine"
)

// metrics is what the page needs beyond the engine's own counters. Guarded by
// Server.mu.
type metrics struct {
	iteration, prompt, output, ttft, itl, e2e histogram
	stopped, lengths                          uint64
	rejectedEarly                             uint64 // before the engine was asked
	last                                      engine.Stats
}

// histogram counts by upper bound, not cumulated.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
}

// The bucket bounds of vLLM 0.32.
var (
	iterationBounds = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	ttftBounds      = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBounds       = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2eBounds       = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// tokenBounds are 1, 2, 5, 10, … up to the context.
func tokenBounds(limit int) []float64 {
	var b []float64
	for decade := 1; ; decade *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*decade > limit {
				return b
			}
			b = append(b, float64(m*decade))
		}
	}
}

func newMetrics(cfg Config) metrics {
	tokens := tokenBounds(cfg.Engine.MaxModelLen)
	return metrics{
		iteration: newHistogram(iterationBounds),
		prompt:    newHistogram(tokens),
		output:    newHistogram(tokens),
		ttft:      newHistogram(ttftBounds),
		itl:       newHistogram(itlBounds),
		e2e:       newHistogram(e2eBounds),
	}
}

// observe records one output; t still holds what was true before it.
func (m *metrics) observe(now time.Time, t *track, ev engine.Event) {
	if t.produced == 0 {
		m.ttft.observe(now.Sub(t.arrived).Seconds())
	} else {
		m.itl.observe(now.Sub(t.last).Seconds())
	}
	if ev.Kind != engine.Finished {
		return
	}
	if t.stops {
		m.stopped++
	} else {
		m.lengths++
	}
	m.prompt.observe(float64(t.promptSize))
	m.output.observe(float64(ev.Output))
	m.e2e.observe(now.Sub(t.arrived).Seconds())
}

// step records an engine step that gave any output: prompt tokens count in the
// step of their first output.
func (m *metrics) step(s engine.Stats) {
	if s.Steps > m.last.Steps {
		m.iteration.observe(float64(s.PromptTokens - m.last.PromptTokens + s.GenerationTokens - m.last.GenerationTokens))
	}
	m.last = s
}

// appendNumber writes a value as Python's prometheus_client does: always a
// float, with an exponent from 1e6 up.
func appendNumber(b []byte, v float64) []byte {
	if v >= 1e6 {
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, 64)
	if !slices.Contains(b[start:], '.') {
		b = append(b, ".0"...)
	}
	return b
}
