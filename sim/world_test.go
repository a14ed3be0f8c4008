package sim

import (
	"testing"
	"time"

	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/sim/traces"
)

// plain is an engine whose steps are easy to add up.
func plain() *Profile {
	return &Profile{Name: "plain", Speeds: []float64{1}, Engine: engine.Config{
		Blocks: 1001, BlockSize: 16, MaxModelLen: 8000, MaxSeqs: 256, MaxBatchedTokens: 1000, FullPromptGate: true,
		Base: 10 * time.Millisecond, PerPrefillToken: 100 * time.Microsecond,
	}}
}

// built is a world under the named policy's first setting.
func built(t *testing.T, p *Profile, c Clients, tenants int, policy string) *world {
	t.Helper()
	found, err := FindPolicies([]string{policy})
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(newTally(p, &Config{Workload: &traces.Workload{Tenants: tenants}, Width: 1, Span: time.Hour}), c, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.tally.before = make([]engine.Stats, len(w.units))
	if w.front, err = found[0].settings(capacity{requests: 1, tokens: 1000, prefill: 1000, output: 100})[0].front(w); err != nil {
		t.Fatal(err)
	}
	return w
}

func one(at time.Duration, prompt, output int) traces.Arrival {
	return traces.Arrival{Request: traces.Request{At: at, Prompt: prompt, Output: output}, Guess: 1}
}

// One request on an idle engine: 500 prompt tokens take a step of 60 ms, four more
// tokens 10 ms each.
func TestOneRequest(t *testing.T) {
	for _, policy := range []string{"none", "forecast"} {
		t.Run(policy, func(t *testing.T) {
			w := built(t, plain(), Clients{}, 1, policy)
			w.run([]traces.Arrival{one(time.Second, 500, 5)}, 10*time.Second)
			v := w.visits[0]
			if want := dispatch + 60*time.Millisecond + relay; v.first-v.sent != want {
				t.Errorf("first token after %v, want %v", v.first-v.sent, want)
			}
			if v.out != 5 || v.phase != over || v.gap != 10*time.Millisecond || v.last-v.first != 40*time.Millisecond {
				t.Errorf("%d tokens, phase %d, gap %v, from first to last %v", v.out, v.phase, v.gap, v.last-v.first)
			}
			if f := w.tally.figures(w, []traces.Arrival{v.Arrival}); f.Attainment != 1 || f.TokenGoodput*3600 < 504 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// The second of two goes away while the first one's 4,000 tokens are prefilled, and
// comes back.
func TestPatience(t *testing.T) {
	w := built(t, plain(), Clients{Patience: 200 * time.Millisecond, Retries: 1}, 1, "none")
	w.run([]traces.Arrival{one(0, 4000, 2), one(time.Millisecond, 100, 2)}, 20*time.Second)
	if len(w.visits) != 4 {
		t.Fatalf("%d visits, want each of two to come twice", len(w.visits))
	}
	for i, v := range w.visits[:2] {
		if v.phase != failed {
			t.Errorf("visit %d ended as %d, want %d", i, v.phase, failed)
		}
	}
	for _, v := range w.visits[2:] {
		after := v.sent - 200*time.Millisecond
		if v.try != 1 || after < 500*time.Millisecond || after > 1501*time.Millisecond {
			t.Errorf("try %d sent %v after the first gave up, want 0.5 to 1.5 s", v.try, after)
		}
	}
	if s := w.units[0].engine.Stats(); s.Aborted < 2 || !w.units[0].engine.Idle() {
		t.Errorf("%d aborted, idle %v: the engine must be told", s.Aborted, w.units[0].engine.Idle())
	}
}

// TestEverythingEnds: with clients that go away and come back, every attempt ends
// once, and afterwards neither ledger, nor door, nor lanes hold anything.
func TestEverythingEnds(t *testing.T) {
	w0, err := traces.Load("tenants")
	if err != nil {
		t.Fatal(err)
	}
	p, err := LoadProfile("kv-bound")
	if err != nil {
		t.Fatal(err)
	}
	p.Speeds = []float64{1, 1}
	arrivals := w0.Arrivals(40, 30*time.Second, 3, 0, 1)
	for _, policy := range Policies() {
		t.Run(policy, func(t *testing.T) {
			w := built(t, p, Clients{Patience: 3 * time.Second, Retries: 2}, w0.Tenants, policy)
			w.run(arrivals, 10*time.Minute)
			tries := map[int]int{}
			for _, v := range w.visits {
				if v.phase < over {
					t.Fatalf("request %d, try %d is in phase %d at the end", v.origin, v.try, v.phase)
				}
				if v.phase == over && (v.out != v.Output || v.first <= v.sent) {
					t.Fatalf("request %d has %d of %d tokens", v.origin, v.out, v.Output)
				}
				tries[v.origin]++
			}
			if len(tries) != len(arrivals) {
				t.Errorf("%d of %d requests were sent", len(tries), len(arrivals))
			}
			switch f := w.front.(type) {
			case *gate:
				atRest(t, w, f)
			case *queue:
				if len(f.line) > 0 || f.inflight[0] != 0 || f.pending[1] != 0 || f.firsts[0] != 0 {
					t.Errorf("%d wait, in flight %v, pending %v, without a first token %v", len(f.line), f.inflight, f.pending, f.firsts)
				}
			}
		})
	}
}

func atRest(t *testing.T, w *world, g *gate) {
	t.Helper()
	for _, a := range g.agents {
		if v := a.sched.View(w.time()); v.Requests != 0 || v.Tokens != 0 || v.Pending != 0 || v.Credit != 0 || len(a.heads) != 0 {
			t.Errorf("engine %d: ledger %+v, %d in the room", a.unit, v, len(a.heads))
		}
	}
	for _, row := range g.door.Waiting() {
		if row.Requests != 0 || row.Tokens != 0 {
			t.Errorf("the door's backlog is %+v", row)
		}
	}
	for _, l := range g.lanes {
		if o := l.lines[0]; o.tokens != 0 || len(o.waiting) != 0 || o.deciding != nil || l.own.Requests != 0 {
			t.Errorf("lane %v: %d tokens, %d wait, deciding %v, own %+v", l.key, o.tokens, len(o.waiting), o.deciding != nil, l.own)
		}
	}
}

// Events of one moment come in the order of asking.
func TestEventsInOrder(t *testing.T) {
	var q events
	var got []int
	for i := range 200 {
		q.push(time.Duration(i%7), func() { got = append(got, i) })
	}
	for last := (event{}); len(q.heap) > 0; {
		e := q.pop()
		if e.before(&last) {
			t.Fatal("an event came before an earlier one")
		}
		last = e
		e.do()
	}
	if len(got) != 200 || got[0] != 0 || got[1] != 7 {
		t.Errorf("%d events, first %v", len(got), got[:2])
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

func TestLawsDiffer(t *testing.T) {
	w := built(t, plain(), Clients{}, 1, "law-watermark")
	if w.front.(*gate).oracle {
		t.Error("law-watermark knows lengths")
	}
	w = built(t, plain(), Clients{}, 1, "oracle")
	w.front.arrive(&visit{Arrival: one(0, 10, 77), hash: 5})
	if r := w.front.(*gate).lanes[0].lines[0].deciding.req; r.ExpectedOut != 77 || r.Class != 0 || r.PromptTokens != 10 {
		t.Errorf("the oracle's request is %+v", r)
	}
	if scheduler.DefaultConfig().Poll != poll {
		t.Errorf("the world polls every %v, production every %v", poll, scheduler.DefaultConfig().Poll)
	}
}
