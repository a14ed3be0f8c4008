package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/sim/gate"
	"penstock/sim/world"
)

// Policy is a way to let requests in, with the settings to try. A report shows the
// one with the best goodput at each load: no baseline loses by its setting.
type Policy struct {
	Name     string
	settings func(capacity) []setting
}

type setting struct {
	name   string
	engine func(*engine.Config) // nil = as the profile says
	front  func(w *world.World, t *tally) (world.Front, error)
}

// Policies are the names that FindPolicies knows, penstock's own first.
func Policies() []string {
	var names []string
	for _, p := range policies {
		names = append(names, p.Name)
	}
	return names
}

// FindPolicies looks names up; "all" is every one.
func FindPolicies(names []string) ([]Policy, error) {
	if slices.Equal(names, []string{"all"}) {
		return policies, nil
	}
	var found []Policy
	for _, name := range names {
		i := slices.IndexFunc(policies, func(p Policy) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no policy %q: choose all or some of %s", name, strings.Join(Policies(), ", "))
		}
		found = append(found, policies[i])
	}
	return found, nil
}

var policies = []Policy{
	{"forecast", gated(gate.Config{Law: scheduler.Forecast})},
	{"oracle", gated(gate.Config{Law: scheduler.Forecast, Oracle: true})},
	{"law-watermark", gated(gate.Config{Law: scheduler.Watermark})},
	{"forecast-alone", gated(gate.Config{Law: scheduler.Forecast, Alone: true})},
	{"law-watermark-alone", gated(gate.Config{Law: scheduler.Watermark, Alone: true})},
	{"gauge-shed", queued("", rules{pass: gaugeBelow(0.8, 0.8, 5), shed: true})},
	{"gauge-shed-even", queued("", rules{pass: gaugeBelow(0.8, 0.8, 5), shed: true, even: true})},
	{"none", none},
	{"concurrency", concurrency(false)},
	{"concurrency-even", concurrency(true)},
	{"bounded-queue", boundedQueue},
	{"watermark", queued("0.8/0.7, queue 5", rules{pass: gaugeBelow(0.8, 0.7, 5)})},
	{"watermark-ttl", watermarkTTL},
	{"vllm-caps", vllmCaps},
	{"token-bucket", tokenBucket},
	{"backpressure", backpressure},
}

// gated is penstock under a law. The oracle's lengths are the true ones; agents that
// are alone pass no head on to a peer.
func gated(g gate.Config) func(capacity) []setting {
	g.TTFT, g.TPOT = sloTTFT, sloTPOT
	return func(capacity) []setting {
		return []setting{{front: func(w *world.World, t *tally) (world.Front, error) {
			cfg := g // worlds run side by side
			cfg.Tenants, cfg.Tiers, cfg.Width, cfg.Told = t.tenants, t.tiers, t.width, t.told
			return gate.New(cfg, w)
		}}}
	}
}

func queued(name string, r rules) func(capacity) []setting {
	return func(capacity) []setting { return []setting{{name: name, front: inFront(r)}} }
}

func inFront(r rules) func(*world.World, *tally) (world.Front, error) {
	return func(w *world.World, _ *tally) (world.Front, error) { return newQueue(w, r), nil }
}

// spare is vLLM's --watermark.
func spare(share float64) func(*engine.Config) {
	return func(c *engine.Config) { c.Watermark = share }
}

// none sends everything on at once, to vLLM as it is and with its watermark.
func none(capacity) []setting {
	return []setting{
		{"", nil, inFront(rules{})},
		{"--watermark 0.05", spare(0.05), inFront(rules{})},
	}
}

// concurrency holds at most n requests in each engine and sheds who can't have a first
// token in time: the own prefill counted, or even, by penstock's own rule.
func concurrency(even bool) func(capacity) []setting {
	return func(capacity) (out []setting) {
		for _, n := range inflights {
			out = append(out, setting{fmt.Sprintf("%d in flight, shed", n), nil, inFront(rules{pass: below(n), shed: true, even: even})})
		}
		return out
	}
}

// inflights are the requests in an engine to try, for policies that bound them.
var inflights = []int{4, 8, 16, 32, 48, 64, 96, 128, 192, 256}

// waits are the longest waits in line to try, for policies that have one.
var waits = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, sloTTFT}

// boundedQueue holds at most n in each engine, the others wait at most ttl.
func boundedQueue(capacity) (out []setting) {
	for _, n := range inflights {
		for _, ttl := range waits {
			out = append(out, setting{fmt.Sprintf("%d in flight, wait %v", n, ttl), nil, inFront(rules{pass: below(n), ttl: ttl})})
		}
	}
	return out
}

func below(n int) func(*queue, *world.Visit) bool {
	return func(q *queue, _ *world.Visit) bool { return q.inflight[q.target()] < n }
}

// watermarkTTL is the gauge's two marks and a wait bounded by the limit of the
// first token, as gateways with a saturation detector are set up.
func watermarkTTL(capacity) (out []setting) {
	for _, ttl := range waits {
		out = append(out, setting{fmt.Sprintf("0.8/0.7, queue 5, wait %v", ttl), nil, inFront(rules{pass: gaugeBelow(0.8, 0.7, 5), ttl: ttl})})
	}
	return out
}

// gaugeBelow lets go while the gauges show KV usage below stop and few requests
// waiting; once shut, not before usage is below reopen.
func gaugeBelow(stop, reopen float64, waiting int) func(*queue, *world.Visit) bool {
	return func(q *queue, _ *world.Visit) bool {
		g := &q.gauges[q.target()]
		if q.closed = g.KV >= stop || q.closed && g.KV >= reopen; q.closed {
			return false
		}
		return g.Waiting < waiting
	}
}

// vllmCaps is vLLM's own refusals, with its watermark: at most so many sequences in
// flight, and prompt tokens queued by its rule, target TTFT times prefill speed, and
// parts of it; 0 = no limit.
func vllmCaps(c capacity) (out []setting) {
	rule := sloTTFT.Seconds() * c.prefill
	for _, seqs := range []int{0, 8, 16, 32, 64, 96, 128, 256} {
		for _, part := range []float64{0, 0.125, 0.25, 0.5, 1} {
			tokens := int(part * rule)
			out = append(out, setting{
				name:   fmt.Sprintf("--max-num-queued-tokens %d --max-num-queued-reqs %d --watermark 0.05", tokens, seqs),
				engine: func(e *engine.Config) { e.Watermark, e.MaxQueuedReqs, e.MaxQueuedTokens = 0.05, seqs, tokens },
				front:  inFront(rules{}),
			})
		}
	}
	return out
}

// tokenBucket lets in tokens, prompts and the mean output, at a share of the
// engine's capacity, a burst of one second.
func tokenBucket(c capacity) (out []setting) {
	for _, share := range []float64{0.8, 0.9, 1} {
		for _, ttl := range waits {
			out = append(out, setting{fmt.Sprintf("%.1f of capacity, wait %v", share, ttl), nil, func(w *world.World, _ *tally) (world.Front, error) {
				rate := share * c.tokens * float64(w.Engines())
				return newQueue(w, rules{ttl: ttl, pass: func(q *queue, v *world.Visit) bool {
					q.level = max(q.level-rate*(w.Now-q.leaked).Seconds(), 0)
					q.leaked = w.Now
					if q.level > rate {
						return false
					}
					q.level += float64(v.Guessed()) + c.output
					return true
				}}), nil
			}})
		}
	}
	return out
}

// backpressure lets at most n requests be in an engine without a first token: its
// queue stays short whatever its memory holds.
func backpressure(capacity) (out []setting) {
	for _, n := range []int{1, 2, 4, 8} {
		for _, ttl := range waits {
			pass := func(q *queue, _ *world.Visit) bool { return q.firsts[q.target()] < n }
			out = append(out, setting{fmt.Sprintf("%d without a first token, wait %v", n, ttl), nil, inFront(rules{pass: pass, ttl: ttl})})
		}
	}
	return out
}
