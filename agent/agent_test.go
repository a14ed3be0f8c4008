package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/agent/state"
	"penstock/fleet"
	"penstock/queue"
	"penstock/reason"
	"penstock/response"
	"penstock/scheduler"
	"penstock/vllm/vllmtest"
)

func TestStream(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	m := n.send(n.message(20))
	done := n.outcome(m.ID)
	if done.Kind != response.Done || done.Reason != reason.Finished || done.Node != "node-1" || done.Tries != 1 || done.Usage.Output != 20 {
		t.Errorf("terminal event: got %+v, want Done, finished, node-1, 1 try, 20 tokens", done)
	}
	events := n.of(m.ID)
	var text strings.Builder
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			t.Errorf("event %d: got seq %d, want %d", i, e.Seq, i+1)
		}
		text.Write(e.Payload)
	}
	if events[0].Kind != response.First || events[0].Status != 200 {
		t.Errorf("first event: got %+v, want First with status 200", events[0])
	}
	if got := strings.Count(text.String(), "data: "); got < 21 || !strings.HasSuffix(text.String(), "data: [DONE]\n\n") {
		t.Errorf("relayed: got %d events ending in %q, want at least 21 and [DONE] last", got, text.String()[max(0, text.Len()-40):])
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	m := n.send(n.message(20, plain))
	if e := n.outcome(m.ID); e.Kind != response.Done || e.Status != 200 || e.Usage.Output != 20 || !strings.HasPrefix(string(e.Payload), "{") {
		t.Errorf("outcome: got %+v, want Done with the body", e)
	}
}

// TestBurst: five hundred at once from fifty tenants, all done, none lost, the
// engine never beyond what the law allows.
func TestBurst(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	var all []*queue.Message
	for i := range 500 {
		all = append(all, n.send(n.message(8, tenant(fmt.Sprint(i%50)))))
	}
	for _, m := range all {
		if e := n.outcome(m.ID); e.Kind != response.Done {
			t.Fatalf("request %s: got %+v, want done", m.ID, e)
		}
	}
	if got := n.vllm.Stats().Preemptions; got != 0 {
		t.Errorf("preemptions: got %v, want 0", got)
	}
	n.until("ledger empty", func() bool { return n.agent.State(time.Now()).View.Requests == 0 })
}

// TestAbortFreesEngine: closing the connection is the abort, and its effect is seen.
func TestAbortFreesEngine(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*queue.Message)
	}{{"stream", func(*queue.Message) {}}, {"plain", plain}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t).run()
			m := n.send(n.message(8000, tc.change))
			n.until("runs", func() bool { return n.agent.State(time.Now()).View.Running == 1 })
			at := time.Now()
			if _, err := n.reg.Cancel(t.Context(), m.ID, false); err != nil {
				t.Fatal(err)
			}
			n.until("engine empty", func() bool { return n.vllm.InFlight() == 0 })
			if took := time.Since(at); took > 100*time.Millisecond {
				t.Errorf("engine empty after %v, want within 100ms", took)
			}
			if e := n.outcome(m.ID); e.Reason != reason.Aborted {
				t.Errorf("outcome: got %+v, want aborted", e)
			}
			n.until("freed", func() bool { return testutil.ToFloat64(n.agent.metrics.Freed) == 1 })
			if got := testutil.ToFloat64(n.agent.metrics.Sent); got != 1 {
				t.Errorf("sent: got %v, want 1", got)
			}
		})
	}
}

// TestLostScrapes: five lost pages in a row stall nobody for 300 ms.
func TestLostScrapes(t *testing.T) {
	n := newNode(t).run()
	n.outcome(n.send(n.message(2)).ID) // the engine's speed is known
	n.vllm.Break(vllmtest.MetricsError)
	mend := time.AfterFunc(260*time.Millisecond, func() { n.vllm.Mend(vllmtest.MetricsError) })
	defer mend.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var all []*queue.Message
	for range 40 {
		<-tick.C
		all = append(all, n.send(n.message(2, tenant(fmt.Sprint(len(all))))))
	}
	for _, m := range all {
		if e := n.outcome(m.ID); e.Kind != response.Done || e.Queued > 300*time.Millisecond {
			t.Errorf("request %s: got %v after %v in the lane, want done within 300ms", m.ID, e.Kind, e.Queued)
		}
	}
	if !n.agent.Health().Ready {
		t.Error("health: got not ready, want ready all along")
	}
}

// TestEngineDies: its process goes under running requests and comes back. Streams
// that had begun end, the rest runs again, and nothing of ours is restarted.
func TestEngineDies(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	begun := n.send(n.message(8000, tenant("a")))
	n.event(begun.ID, func(e response.Event) bool { return e.Kind == response.First })
	whole := n.send(n.message(200, plain, tenant("b")))
	n.until("both run", func() bool { return n.vllm.InFlight() == 2 })
	n.vllm.Stop()
	if e := n.outcome(begun.ID); e.Reason != reason.UpstreamLost {
		t.Errorf("stream: got %+v, want upstream_lost", e)
	}
	n.until("not ready", func() bool { return !n.agent.Health().Ready })
	if h := n.agent.Health(); h.Reason != reason.EngineDown && h.Reason != reason.Blind {
		t.Errorf("health: got %+v, want engine_down, then blind", h)
	}
	n.vllm.Restart()
	if e := n.outcome(whole.ID); e.Kind != response.Done || e.Tries < 2 {
		t.Errorf("plain request: got %+v, want done by a second try", e)
	}
	n.until("ready", func() bool { return n.agent.Health().Ready })
}

// TestProcessDies: the engine's process is gone, its HTTP side and its page live on.
func TestProcessDies(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	begun := n.send(n.message(8000, tenant("a")))
	n.event(begun.ID, func(e response.Event) bool { return e.Kind == response.First })
	n.vllm.Break(vllmtest.EngineDead)
	if e := n.outcome(begun.ID); e.Reason != reason.UpstreamLost {
		t.Errorf("stream: got %+v, want upstream_lost", e)
	}
	n.until("not ready", func() bool { return n.agent.Health().Reason == reason.EngineDown })
	if row := n.agent.Row(time.Now()); row.State != reason.EngineDown || row.Freeness != 0 {
		t.Errorf("row: got %+v, want engine_down and no room", row)
	}
	waits := n.send(n.message(2, tenant("b")))
	n.vllm.Restart()
	if e := n.outcome(waits.ID); e.Kind != response.Done || e.Tries != 1 {
		t.Errorf("request sent while it was dead: got %+v, want done by the first try", e)
	}
	n.until("ready", func() bool { return n.agent.Health().Ready })
}

// TestDebugState can be written as JSON and names the last verdict.
func TestDebugState(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	m := n.send(n.message(4))
	n.outcome(m.ID)
	n.store.set(func(s *store) { s.away = true })
	_, _ = n.agent.records.Renew(t.Context(), "node-1", nil)
	n.store.set(func(s *store) { s.away = false })
	text, err := json.Marshal(n.agent.DebugState())
	if err != nil || !strings.Contains(string(text), `"id":"`+m.ID+`","action":"start","reason":"ok"`) {
		t.Errorf("state: got %s, %v, want the start of %s", text, err, m.ID)
	}
	if s := n.debug(); s.Why != "" || s.Store == nil || s.Store.Call != "renew" || s.Store.Error != errAway.Error() {
		t.Errorf("state: got why %q, store %+v; want ready and the call that failed", s.Why, s.Store)
	}
	row := n.agent.Row(time.Now())
	if !row.Serves("q", time.Now()) || row.Freeness == 0 || row.Node != "node-1" {
		t.Errorf("row: got %+v, want node-1 serving q with room", row)
	}
}

// TestPeers: other engines of the same model, by fresh rows.
func TestPeers(t *testing.T) {
	now := time.Unix(1000, 0)
	row := func(node, model string, condition reason.Reason, age time.Duration) fleet.Row {
		return fleet.Row{Engine: fleet.ID(node), Models: fleet.Models(model), State: condition, Freeness: 100, At: now.Add(-age)}
	}
	got := peers([]fleet.Row{
		row("self", "q", reason.OK, 0), row("a", "q", reason.OK, 0), row("b", "q", reason.Stale, 0),
		row("c", "x", reason.OK, 0), row("d", "q", reason.Blind, 0), row("e", "q", reason.OK, time.Minute),
	}, "self", []string{"q"}, now)
	want := []scheduler.Peer{{CanStart: true, Freeness: 100, At: now}, {Freeness: 100, At: now}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("peers: -want +got\n%s", diff)
	}
}

// TestConfig names what is wrong.
func TestConfig(t *testing.T) {
	for _, tc := range []struct {
		want string // in the error; "" = valid
		set  func(*Config)
	}{
		{"", func(*Config) {}},
		{"Node is", func(c *Config) { c.Node = "" }},
		{"Grace is -1s", func(c *Config) { c.Grace = -time.Second }},
		{"Room is 99", func(c *Config) { c.Room = 99 }},
		{"RoomPerLane is 9", func(c *Config) { c.RoomPerLane = 9 }},
		{"RoomHold is 0s", func(c *Config) { c.RoomHold = 0 }},
		{"StoreTimeout is 1m0s", func(c *Config) { c.StoreTimeout = time.Minute }},
		{"same engine", func(c *Config) { c.Scraper.URL = "http://127.0.0.1:2" }},
		{"vllm: URL", func(c *Config) { c.SetEngine("nonsense") }},
	} {
		cfg := DefaultConfig()
		cfg.Node = "n"
		cfg.SetEngine("http://127.0.0.1:1")
		tc.set(&cfg)
		if err := cfg.Validate(); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("Validate: got %v, want an error with %q", err, tc.want)
		}
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil {
		t.Error("New without a node: got nil, want an error")
	}
}

// TestMetrics: what dashboards rely on is there from the start.
func TestMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t).run()
	n.outcome(n.send(n.message(4)).ID)
	families, err := n.prom.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	for _, f := range families {
		have[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"penstock_engine_kv_usage_ratio": 1, "penstock_engine_running_requests": 1, "penstock_engine_waiting_requests": 1,
		"penstock_engine_step_seconds": 1, "penstock_engine_sample_age_seconds": 1, "penstock_engine_scrape_seconds": 1,
		"penstock_engine_state": len(state.States), "penstock_inflight_requests": 1, "penstock_inflight_tokens": 1,
		"penstock_suspend_seconds": 1, "penstock_engine_aborts_total": 2, "penstock_decisions_total": 48, "penstock_attempts_total": 17,
	} {
		if have[name] != want {
			t.Errorf("%s: got %d series, want %d", name, have[name], want)
		}
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "penstock_decisions_total" && m.GetLabel()[0].GetValue() == "start" && m.GetLabel()[1].GetValue() == "ok" && m.GetCounter().GetValue() != 1 {
				t.Errorf("decisions start, ok: got %v, want 1", m)
			}
		}
	}
	if problems, err := testutil.GatherAndLint(n.prom); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
