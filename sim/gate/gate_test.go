package gate

import (
	"testing"
	"time"

	"penstock/scheduler"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// built is a gate in a world of two engines.
func built(t *testing.T, cfg Config, c world.Clients) (*world.World, *Gate) {
	t.Helper()
	p, err := world.LoadProfile("kv-bound")
	if err != nil {
		t.Fatal(err)
	}
	p.Speeds = []float64{1, 1}
	w, err := world.New(p, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg.TTFT, cfg.TPOT, cfg.Width, cfg.Told = 2*time.Second, 100*time.Millisecond, 1, func(scheduler.Verdict) {}
	g, err := New(cfg, w)
	if err != nil {
		t.Fatal(err)
	}
	return w, g
}

// TestEverythingEnds: with clients that go away and come back, every attempt ends once, and
// afterwards neither ledger, nor door, nor lanes hold anything.
func TestEverythingEnds(t *testing.T) {
	load, err := traces.Load("tenants")
	if err != nil {
		t.Fatal(err)
	}
	arrivals := load.Arrivals(40, 30*time.Second, 3, 0, 1)
	for name, cfg := range map[string]Config{
		"forecast":         {Law: scheduler.Forecast},
		"lengths known":    {Law: scheduler.Forecast, Oracle: true},
		"alone":            {Law: scheduler.Forecast, Alone: true},
		"watermark":        {Law: scheduler.Watermark},
		"watermark, alone": {Law: scheduler.Watermark, Alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Tenants = load.Tenants
			w, g := built(t, cfg, world.Clients{Patience: 3 * time.Second, Retries: 2})
			w.Run(g, arrivals, 10*time.Minute)
			tries := map[int]int{}
			for _, v := range w.Visits {
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
			atRest(t, w, g)
		})
	}
}

func atRest(t *testing.T, w *world.World, g *Gate) {
	t.Helper()
	for _, a := range g.agents {
		if v := a.sched.View(w.Time()); v.Requests != 0 || v.Tokens != 0 || v.Pending != 0 || v.Credit != 0 || len(a.heads) != 0 {
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

// Only the oracle knows lengths, and the world polls as production does.
func TestOracle(t *testing.T) {
	visit := func() *world.Visit {
		return &world.Visit{Arrival: traces.Arrival{Request: traces.Request{Prompt: 10, Output: 77}, Guess: 1}, Hash: 5}
	}
	for _, law := range []scheduler.Law{scheduler.Forecast, scheduler.Watermark} {
		_, g := built(t, Config{Law: law, Tenants: 1}, world.Clients{})
		g.Arrive(visit())
		if r := g.lanes[0].lines[0].deciding.req; r.ExpectedOut == 77 || r.Class == 0 {
			t.Errorf("law %v knows lengths: %+v", law, r)
		}
	}
	_, g := built(t, Config{Law: scheduler.Forecast, Oracle: true, Tenants: 1}, world.Clients{})
	g.Arrive(visit())
	if r := g.lanes[0].lines[0].deciding.req; r.ExpectedOut != 77 || r.Class != 0 || r.PromptTokens != 10 {
		t.Errorf("the oracle's request is %+v", r)
	}
	if scheduler.DefaultConfig().Poll != world.Poll {
		t.Errorf("the world polls every %v, production every %v", world.Poll, scheduler.DefaultConfig().Poll)
	}
}
