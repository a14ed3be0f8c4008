package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/cmd/penstock/demo"
	"penstock/cmd/penstock/flags"
	"penstock/fleet"
	"penstock/load"
	"penstock/policy/apikey"
	"penstock/reason"
	"penstock/sim/engine"
	"penstock/vllm/simengine"
	"penstock/vllm/vllmtest"
)

// maxWaiting is the most the law lets wait inside an engine.
const maxWaiting = 20

// TestBurst sends 500 requests at once, in one lane and in many, also to an engine
// with few seats: what waits, waits outside it, and everybody is answered.
func TestBurst(t *testing.T) {
	for _, tc := range []struct {
		seats, tenants int
	}{{256, 50}, {8, 1}, {8, 50}} {
		t.Run(fmt.Sprintf("%d seats, %d tenants", tc.seats, tc.tenants), func(t *testing.T) {
			e := vllmtest.Start(t, vllmtest.WithBlocks(1025), vllmtest.WithConfig(func(c *simengine.Config) { c.Engine.MaxSeqs = tc.seats }))
			var keys strings.Builder
			for i := range tc.tenants {
				fmt.Fprintf(&keys, "tenant%d: key%d\n", i, i)
			}
			p := startProcess(t, func(o *flags.Options) {
				var err error
				if o.Keys, err = apikey.Parse([]byte(keys.String())); err != nil {
					t.Fatal(err)
				}
			}, e.URL())
			const burst = 500
			p.client = newH2C(t)
			bearer := func(i int) string { return fmt.Sprintf("Bearer key%d", i%tc.tenants) }
			if r := p.post(completion(100, 8, streamed), "Authorization", bearer(0)); r.status != http.StatusOK {
				t.Fatalf("before: %v", r)
			}
			// Not one sample comes between the first and the last of them.
			pages := e.Scrapes()
			e.SlowMetrics(time.Minute)
			p.until("a scrape hangs", func() bool { return e.Scrapes() > pages })
			replies := make([]reply, burst)
			start := time.Now()
			var wg sync.WaitGroup
			for i := range burst {
				wg.Go(func() { replies[i] = p.post(completion(100, 8, streamed), "Authorization", bearer(i)) })
			}
			p.until("all are there", func() bool {
				return p.metric("penstock_open_requests")+p.metric("penstock_requests_total") >= burst+1
			})
			arrived := time.Since(start)
			e.SlowMetrics(0)
			wg.Wait()
			answered, refused := 0, 0
			for _, r := range replies {
				switch {
				case r.complete():
					answered++
				case r.refused():
					refused++
				default:
					t.Errorf("neither an answer nor an honest refusal: %v", r)
				}
			}
			if peak := e.PeakWaiting(); peak > maxWaiting {
				t.Errorf("%d requests waited inside the engine, want at most %d", peak, maxWaiting)
			}
			t.Logf("all there after %v, all over after %v: %d answered, %d refused; peak waiting %d",
				arrived.Round(time.Millisecond), time.Since(start).Round(time.Millisecond), answered, refused, e.PeakWaiting())
		})
	}
}

// TestOverload holds that twice what an engine can finish preempts next to nothing.
func TestOverload(t *testing.T) {
	t.Parallel()
	cfg := vllmtest.DefaultConfig()
	cfg.Engine = engine.Config{
		Blocks: 1025, BlockSize: 32, MaxModelLen: 8192, MaxSeqs: 128, MaxBatchedTokens: 2048, FullPromptGate: true,
		Base: 4 * time.Millisecond, PerPrefillToken: 10 * time.Microsecond, PerSeq: 20 * time.Microsecond,
	}
	e := vllmtest.Start(t, vllmtest.WithConfig(func(c *simengine.Config) { *c = cfg }))
	p := startProcess(t, nil, e.URL())
	random := rand.New(rand.NewPCG(1, 2))
	shapes := make([]load.Shape, 500)
	for i := range shapes {
		shapes[i] = load.Shape{
			Prompt: int(math.Min(4000, 400*math.Exp(0.7*random.NormFloat64()))),
			Output: int(math.Min(1000, 150*math.Exp(0.6*random.NormFloat64()))) + 1,
		}
	}
	most, err := demo.Capacity(cfg.Engine, shapes)
	if err != nil {
		t.Fatal(err)
	}
	const seconds = 3
	rate := 2 * most
	arrivals := load.Poisson(shapes, rate, int(rate*seconds), 3)
	bare := alone(t, cfg.Engine, arrivals)
	outcomes, err := load.Run(t.Context(), load.Config{
		URL: "http://" + p.Address(), Model: cfg.Model, Arrivals: arrivals,
		BytesPerToken: 1, Patience: 30 * time.Second, SLO: load.DefaultSLO, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	stats := e.Stats()
	share := float64(stats.Preemptions) / float64(stats.Finished)
	if share > 0.015 {
		p.bound("%d preemptions over %d finished requests (%.1f %%), want at most 1.5 %%", stats.Preemptions, stats.Finished, 100*share)
	}
	summary := load.Summarize(outcomes)
	if stats.PeakWaiting > maxWaiting {
		t.Errorf("%d requests waited inside the engine, want at most %d", stats.PeakWaiting, maxWaiting)
	}
	if !raced && float64(summary.Good) < 0.3*float64(len(outcomes)) {
		p.bound("%d of %d requests were good, want at least 30 %% at twice the capacity", summary.Good, len(outcomes))
	}
	t.Logf("%.0f/s at a capacity of %.0f/s: %d requests, %d answered, %d good, refused %v; %d preemptions (%.2f %%; without penstock %.0f %%), peak KV %.2f, peak waiting %d",
		rate, most, len(outcomes), stats.Finished, summary.Good, summary.Refused, stats.Preemptions, 100*share, 100*bare, stats.PeakKV, stats.PeakWaiting)
}

// alone is the share of requests that an engine preempts which gets all of them as
// they come, in virtual time.
func alone(t *testing.T, cfg engine.Config, arrivals []load.Arrival) float64 {
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	for sent := 0; sent < len(arrivals) || !e.Idle(); now += e.Step().Duration {
		if e.Idle() {
			now = max(now, arrivals[sent].At)
		}
		for ; sent < len(arrivals) && arrivals[sent].At <= now; sent++ {
			if err := e.Submit(engine.Request{ID: uint64(sent + 1), Prompt: max(1, arrivals[sent].Prompt), Output: arrivals[sent].Output}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return float64(e.Stats().Preemptions) / float64(len(arrivals))
}

// TestLostScrapes holds that five scrapes lost in a row stall nothing: starts go on
// by what was started, and stale is not full.
func TestLostScrapes(t *testing.T) {
	for _, tc := range []struct {
		name       string
		fail, mend func(*vllmtest.Engine)
		lost       bool // it gives no sample
	}{
		{"500", breaking(vllmtest.MetricsError), mending(vllmtest.MetricsError), true},
		{"cut", breaking(vllmtest.MetricsCut), mending(vllmtest.MetricsCut), true},
		{"hanging", func(e *vllmtest.Engine) { e.SlowMetrics(time.Minute) }, func(e *vllmtest.Engine) { e.SlowMetrics(0) }, true},
		{"slow", func(e *vllmtest.Engine) { e.SlowMetrics(100 * time.Millisecond) }, func(e *vllmtest.Engine) { e.SlowMetrics(0) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := vllmtest.Start(t, vllmtest.WithBlocks(1025), vllmtest.WithStep(2*time.Millisecond))
			p := startProcess(t, nil, e.URL())
			long := p.open(completion(20, 400, streamed))
			// One request after the other, each a start.
			var starts []time.Time
			var states []reason.Reason
			tick := func() {
				if r := p.post(completion(20, 2, streamed)); !r.complete() {
					p.bound("request: %v", r)
				}
				starts = append(starts, time.Now())
				rows := p.Rows()
				if i := slices.IndexFunc(rows, func(r fleet.Row) bool { return r.State != reason.OK }); i >= 0 {
					states = append(states, rows[i].State)
				}
			}
			for range 10 {
				tick()
			}
			full := fullness(p)
			lost := e.Scrapes() + 5
			tc.fail(e)
			// A scrape that hangs takes its whole timeout of 250 ms, and after a second
			// without a sample the engine counts as blind: fewer than five fit in.
			for end := time.Now().Add(800 * time.Millisecond); e.Scrapes() < lost && time.Now().Before(end); {
				tick()
			}
			missed := e.Scrapes() - lost + 5
			tc.mend(e)
			for range 10 {
				tick()
			}
			gap := time.Duration(0)
			for i := 1; i < len(starts); i++ {
				gap = max(gap, starts[i].Sub(starts[i-1]))
			}
			if limit := 300 * time.Millisecond; gap > limit && !raced || gap > 3*limit {
				p.bound("no start for %v, want at most %v", gap, limit)
			}
			if i := slices.IndexFunc(states, func(r reason.Reason) bool { return r != reason.Stale }); i >= 0 || tc.lost && len(states) == 0 {
				p.bound("states but ok: %v, want stale and nothing else", states)
			}
			if now := fullness(p); now != full {
				p.bound("%v heads were told that the engine is full, want none", now-full)
			}
			events, err := long.rest()
			checkEnd(t, events, err, true)
			t.Logf("%d scrapes lost: longest time without a start %v", missed, gap.Round(time.Millisecond))
		})
	}
}

// fullness counts the verdicts that say the engine is full.
func fullness(p *process) float64 {
	sum := 0.0
	for _, why := range []reason.Reason{reason.KVHigh, reason.KVBand, reason.KVCredit, reason.WaitingHigh, reason.WaitingSome} {
		for _, action := range []string{"suspend", "hold"} {
			sum += p.metric("penstock_decisions_total", "action="+action, "reason="+why.String())
		}
	}
	return sum
}
