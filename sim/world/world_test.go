package world

import (
	"testing"
	"time"

	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/sim/traces"
)

// straight sends everything to the first engine at once.
type straight struct{ w *World }

func (s straight) Arrive(v *Visit)              { s.w.Submit(v, 0) }
func (s straight) Gone(*Visit)                  {}
func (s straight) Token(*Visit)                 {}
func (s straight) Ended(*Visit)                 {}
func (s straight) Sample(int, scheduler.Sample) {}

// started has one engine whose steps are easy to add up.
func started(t *testing.T, c Clients) *World {
	t.Helper()
	w, err := New(&Profile{Name: "plain", Speeds: []float64{1}, Engine: engine.Config{
		Blocks: 1001, BlockSize: 16, MaxModelLen: 8000, MaxSeqs: 256, MaxBatchedTokens: 1000, FullPromptGate: true,
		Base: 10 * time.Millisecond, PerPrefillToken: 100 * time.Microsecond,
	}}, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func one(at time.Duration, prompt, output int) traces.Arrival {
	return traces.Arrival{Request: traces.Request{At: at, Prompt: prompt, Output: output}, Guess: 1}
}

// The second of two goes away while the first one's 4,000 tokens are prefilled, and
// comes back.
func TestPatience(t *testing.T) {
	w := started(t, Clients{Patience: 200 * time.Millisecond, Retries: 1})
	w.Run(straight{w}, []traces.Arrival{one(0, 4000, 2), one(time.Millisecond, 100, 2)}, 20*time.Second)
	if len(w.Visits) != 4 {
		t.Fatalf("%d visits, want each of two to come twice", len(w.Visits))
	}
	for i, v := range w.Visits[:2] {
		if v.Phase != Failed {
			t.Errorf("visit %d ended as %d, want %d", i, v.Phase, Failed)
		}
	}
	for _, v := range w.Visits[2:] {
		after := v.Sent - 200*time.Millisecond
		if v.Try != 1 || after < 500*time.Millisecond || after > 1501*time.Millisecond {
			t.Errorf("try %d sent %v after the first gave up, want 0.5 to 1.5 s", v.Try, after)
		}
	}
	if s := w.units[0].engine.Stats(); s.Aborted < 2 || !w.units[0].engine.Idle() {
		t.Errorf("%d aborted, idle %v: the engine must be told", s.Aborted, w.units[0].engine.Idle())
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
