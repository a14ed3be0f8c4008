package sim

import (
	"fmt"
	"testing"
	"time"

	"penstock/sim/engine"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// plain is an engine whose steps are easy to add up.
func plain() *world.Profile {
	return &world.Profile{Name: "plain", Speeds: []float64{1}, Engine: engine.Config{
		Blocks: 1001, BlockSize: 16, MaxModelLen: 8000, MaxSeqs: 256, MaxBatchedTokens: 1000, FullPromptGate: true,
		Base: 10 * time.Millisecond, PerPrefillToken: 100 * time.Microsecond,
	}}
}

// built is a world under the named policy's first setting, and what counts in it.
func built(t *testing.T, p *world.Profile, c world.Clients, tenants int, policy string) (*tally, world.Front) {
	t.Helper()
	found, err := FindPolicies([]string{policy})
	if err != nil {
		t.Fatal(err)
	}
	w, err := world.New(p, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	counted := newTally(w, &Config{Workload: &traces.Workload{Tenants: tenants}, Width: 1, Span: time.Hour})
	front, err := found[0].settings(capacity{requests: 1, tokens: 1000, prefill: 1000, output: 100})[0].front(w, counted)
	if err != nil {
		t.Fatal(err)
	}
	return counted, front
}

func one(at time.Duration, prompt, output int) traces.Arrival {
	return traces.Arrival{Request: traces.Request{At: at, Prompt: prompt, Output: output}, Guess: 1}
}

// One request on an idle engine: 500 prompt tokens take a step of 60 ms, four more
// tokens 10 ms each; 2 ms on the way to the engine and 1 ms on the way back.
func TestOneRequest(t *testing.T) {
	for _, policy := range []string{"none", "forecast"} {
		t.Run(policy, func(t *testing.T) {
			counted, front := built(t, plain(), world.Clients{}, 1, policy)
			counted.w.Run(front, []traces.Arrival{one(time.Second, 500, 5)}, 10*time.Second)
			v := counted.w.Visits[0]
			if want := 63 * time.Millisecond; v.First-v.Sent != want {
				t.Errorf("first token after %v, want %v", v.First-v.Sent, want)
			}
			if v.Out != 5 || v.Phase != world.Over || v.Gap != 10*time.Millisecond || v.Last-v.First != 40*time.Millisecond {
				t.Errorf("%d tokens, phase %d, gap %v, from first to last %v", v.Out, v.Phase, v.Gap, v.Last-v.First)
			}
			if f := counted.figures([]traces.Arrival{v.Arrival}); f.Attainment != 1 || f.TokenGoodput*3600 < 504 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// TestEverythingEnds: with clients that go away and come back, every attempt ends
// once, and afterwards the queue holds nothing.
func TestEverythingEnds(t *testing.T) {
	w0, err := traces.Load("tenants")
	if err != nil {
		t.Fatal(err)
	}
	p, err := world.LoadProfile("kv-bound")
	if err != nil {
		t.Fatal(err)
	}
	p.Speeds = []float64{1, 1}
	arrivals := w0.Arrivals(40, 30*time.Second, 3, 0, 1)
	for _, policy := range Policies() {
		t.Run(policy, func(t *testing.T) {
			counted, front := built(t, p, world.Clients{Patience: 3 * time.Second, Retries: 2}, w0.Tenants, policy)
			f, is := front.(*queue)
			if !is {
				return // package gate has the same test of itself
			}
			counted.w.Run(front, arrivals, 10*time.Minute)
			tries := map[int]int{}
			for _, v := range counted.w.Visits {
				if v.Phase < world.Over {
					t.Fatalf("request %d, try %d is in phase %d at the end", v.Origin, v.Try, v.Phase)
				}
				if v.Phase == world.Over && (v.Out != v.Output || v.First <= v.Sent) {
					t.Fatalf("request %d has %d of %d tokens", v.Origin, v.Out, v.Output)
				}
				tries[v.Origin]++
			}
			if len(tries) != len(arrivals) {
				t.Errorf("%d of %d requests were sent", len(tries), len(arrivals))
			}
			if len(f.line) > 0 || f.inflight[0] != 0 || f.pending[1] != 0 || f.firsts[0] != 0 {
				t.Errorf("%d wait, in flight %v, pending %v, without a first token %v", len(f.line), f.inflight, f.pending, f.firsts)
			}
		})
	}
}

// A closed loop of equal requests on an engine bound by prefill does what its step
// times say: 1,000 prompt tokens at 0.1 ms and a step's 10 ms, over the decode steps
// that ride along.
func TestSaturate(t *testing.T) {
	p := plain()
	c, err := saturate(p, []traces.Arrival{one(0, 990, 10)}, 10*time.Second, 60*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if c.requests < 8.5 || c.requests > 9.2 { // a chunk of 1,000 holds one prompt of 990 and ten decodes: 109 ms
		t.Errorf("%.2f requests per second, want about 9.1", c.requests)
	}
	if want := 1000 * c.requests; c.tokens < 0.99*want || c.tokens > 1.01*want || c.output != 10 {
		t.Errorf("%.0f tokens per second, output %.1f", c.tokens, c.output)
	}
}

// The same requests fare differently under each law, and where lengths are known.
func TestLawsDiffer(t *testing.T) {
	fared := map[string]string{}
	for _, policy := range []string{"forecast", "oracle", "law-watermark"} {
		counted, front := built(t, plain(), world.Clients{Patience: 10 * time.Second}, 1, policy)
		counted.w.Run(front, suddenly(1, 1), 10*time.Second)
		said := fmt.Sprint(counted.verdicts)
		for other, same := range fared {
			if said == same {
				t.Errorf("%s and %s: the same verdicts %s", policy, other, said)
			}
		}
		fared[policy] = said
	}
}
