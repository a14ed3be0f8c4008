package agent

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/lane"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/vllm"
)

func failure(why reason.Reason, status int) error {
	return &vllm.Error{Reason: why, Status: status, Body: []byte(`{"error":{}}`), Err: errors.New(why.String())}
}

// TestOutcomes is the table of DESIGN.md, row by row.
func TestOutcomes(t *testing.T) {
	type ends struct {
		record  string // the call that settled it; "" = none
		after   time.Duration
		charged int64 // tokens of its limits, 10 of the prompt and 4 of the output reserved
	}
	tokenThen := func(err error) func(*node, *upcall) {
		return func(_ *node, c *upcall) {
			c.token(1)
			c.fail <- err
		}
	}
	fail := func(err error) func(*node, *upcall) { return func(_ *node, c *upcall) { c.fail <- err } }
	cancel := func(n *node, c *upcall) { n.agent.Cancel(n.last, "") }
	first := func(then func(*node, *upcall)) func(*node, *upcall) {
		return func(n *node, c *upcall) {
			c.token(1)
			synctest.Wait()
			then(n, c)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*queue.Message)
		engine func(*node, *upcall) // nil: the engine is not asked
		want   ends
	}{
		{"complete stream", nil, func(_ *node, c *upcall) { c.token(1); c.done() }, ends{"finish done finished", 0, 11}},
		{"complete plain", plain, func(_ *node, c *upcall) { c.answer <- vllm.Answer{Status: 200, Body: []byte("{}")} }, ends{"finish done finished", 0, 14}},
		{"engine 4xx", nil, fail(failure(reason.EngineRefused, 400)), ends{"finish failed engine_refused", 0, 0}},
		{"engine 4xx, plain", plain, fail(failure(reason.EngineRefused, 404)), ends{"finish failed engine_refused", 0, 0}},
		{"aborted before the first token", nil, cancel, ends{"finish failed aborted", 0, 10}},
		{"aborted mid-stream", nil, first(cancel), ends{"finish failed aborted", 0, 11}},
		{"aborted plain", plain, cancel, ends{"finish failed aborted", 0, 14}},
		{"past its deadline", func(m *queue.Message) { m.Deadline = time.Now().Add(-time.Second) }, nil, ends{"finish dropped queue_deadline_exceeded", 0, 0}},
		{"engine refuses the connection", nil, fail(failure(reason.EngineDown, 0)), ends{"release blameless=false", 200 * time.Millisecond, 0}},
		{"engine 5xx, plain", plain, fail(failure(reason.EngineDown, 500)), ends{"release blameless=false", 200 * time.Millisecond, 0}},
		{"engine's own cap", nil, fail(failure(reason.EngineBusy, 503)), ends{"release blameless=true", 200 * time.Millisecond, 0}},
		{"engine drains", nil, fail(failure(reason.EngineDrained, 500)), ends{"release blameless=true", 200 * time.Millisecond, 0}},
		{"no byte for the stall limit", nil, fail(failure(reason.Stalled, 0)), ends{"release blameless=false", 200 * time.Millisecond, 0}},
		{"broke after the first byte", nil, tokenThen(failure(reason.UpstreamLost, 0)), ends{"finish failed upstream_lost", 0, 11}},
		{"stalled after the first byte", nil, tokenThen(failure(reason.Stalled, 0)), ends{"finish failed upstream_lost", 0, 11}},
		{"engine dies after the first byte", nil, tokenThen(failure(reason.EngineDown, 500)), ends{"finish failed upstream_lost", 0, 11}},
	} {
		onStage(t, tc.name, func(t *testing.T, n *node) {
			m := n.message(4)
			if tc.change != nil {
				m = n.message(4, tc.change)
			}
			n.last = m.ID
			n.open(m)
			result := make(chan queue.Result, 1)
			go func() { result <- n.agent.handle(t.Context(), m, func() {}) }()
			if tc.engine != nil {
				c := <-n.fake.calls
				if c.Attempt == m.ID || len(c.Attempt) != 32 {
					t.Errorf("X-Request-Id: got %q, want 32 fresh digits", c.Attempt)
				}
				tc.engine(n, c)
			}
			n.settled(<-result, tc.want.after)
			if got := n.store.calls(); !slices.Equal(got, []string{tc.want.record}) {
				t.Errorf("record: got %q, want %q", got, tc.want.record)
			}
			if got := n.reg.Quota().Settled; got != tc.want.charged {
				t.Errorf("charged %d tokens, want %d", got, tc.want.charged)
			}
			if s := n.agent.State(time.Now()); s.Running != 0 || s.View.Requests != 0 {
				t.Errorf("afterwards: got %d running, %d in the ledger, want none", s.Running, s.View.Requests)
			}
		})
	}
}

// settled compares a result; after 0 means acknowledged.
func (n *node) settled(r queue.Result, after time.Duration) {
	n.t.Helper()
	if got, _ := r.After(); got != after {
		n.t.Errorf("result: got suspend %v, want %v (0 = ack)", got, after)
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 3: 800 * time.Millisecond, 6: 5 * time.Second, 1 << 30: 5 * time.Second, -1: 100 * time.Millisecond,
	} {
		if got := backoff(n); got != want {
			t.Errorf("backoff(%d): got %v, want %v", n, got, want)
		}
	}
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		m := n.send(n.message(4, plain))
		c := <-n.fake.calls
		time.Sleep(47 * time.Second)
		c.answer <- vllm.Answer{Status: http.StatusOK, Body: []byte(`{"x":1}`)}
		done := n.outcome(m.ID)
		got := n.of(m.ID)
		for i, e := range got[:len(got)-1] {
			if e.Kind != response.Heartbeat || e.Seq != uint64(i+1) {
				t.Errorf("event %d: got %+v, want a heartbeat", i, e)
			}
		}
		if len(got) != 4 || string(done.Payload) != `{"x":1}` || done.Status != http.StatusOK {
			t.Errorf("got %d events and %+v, want 3 heartbeats and the answer", len(got), done)
		}
	})
}

func TestAbortBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()

		late := n.message(4)
		n.open(late)
		n.agent.Cancel(late.ID, "")
		n.settled(n.agent.handle(t.Context(), late, func() {}), 0)

		claiming := n.message(4)
		n.open(claiming)
		n.store.set(func(s *store) {
			s.claim = func(c registry.Claim) registry.Claim {
				n.agent.Cancel(claiming.ID, "")
				return c
			}
		})
		n.settled(n.agent.handle(t.Context(), claiming, func() {}), 0)
		n.store.set(func(s *store) { s.claim = nil })

		n.full()
		held := n.message(4, big)
		n.open(held)
		result := make(chan queue.Result, 1)
		from := time.Now()
		go func() { result <- n.agent.handle(t.Context(), held, func() {}) }()
		synctest.Wait()
		n.agent.Cancel(held.ID, "")
		n.settled(<-result, 0)
		if time.Since(from) > 0 {
			t.Errorf("left the room after %v, want at once", time.Since(from))
		}

		if len(n.fake.calls) != 0 {
			t.Errorf("engine: got %d requests, want none", len(n.fake.calls))
		}
		want := []string{"finish dropped aborted", "finish failed aborted", "finish dropped aborted"}
		if got := n.store.calls(); !slices.Equal(got, want) {
			t.Errorf("record: got %q, want %q", got, want)
		}
	})
}

func TestGatewayGone(t *testing.T) {
	for _, after := range []int{0, 2} { // tokens relayed before it goes
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			closeBox, err := n.bus.Open("other", n.take)
			check(t, err)
			m := n.message(4, func(m *queue.Message) { m.Reply = "other" })
			n.open(m)
			result := make(chan queue.Result, 1)
			go func() { result <- n.agent.handle(t.Context(), m, func() {}) }()
			c := <-n.fake.calls
			for i := range after {
				c.token(i)
			}
			synctest.Wait()
			closeBox()
			c.token(after)
			<-c.ctx.Done()
			n.settled(<-result, 0)
		})
	}
}

func TestDuplicateDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		m := n.message(4)
		n.open(m)
		result := make(chan queue.Result, 1)
		go func() { result <- n.agent.handle(t.Context(), m, func() {}) }()
		c := <-n.fake.calls
		n.settled(n.agent.handle(t.Context(), m, func() {}), time.Second)
		c.token(1)
		c.done()
		n.settled(<-result, 0)
		n.settled(n.agent.handle(t.Context(), m, func() {}), 0) // done already
		if got := n.store.calls(); !slices.Equal(got, []string{"finish done finished"}) {
			t.Errorf("record: got %q, want one finish", got)
		}
	})
}

func TestUnknownVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		m := n.message(4, func(m *queue.Message) { m.Version = 99 })
		n.settled(n.agent.handle(t.Context(), m, func() {}), unknownPause)
	})
}

// TestDropOfARunningRequest: another attempt lives, so its outcome is not ours.
func TestDropOfARunningRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		m := n.message(4)
		n.open(m)
		_, err := n.reg.Claim(t.Context(), registry.Start{ID: m.ID, Attempt: "other", Owner: "node-2", Deadline: m.Deadline, Reply: mailbox})
		check(t, err)
		m.Deadline = time.Now().Add(-time.Second)
		n.settled(n.agent.handle(t.Context(), m, func() {}), time.Second)
		if got := n.of(m.ID); len(got) != 0 {
			t.Errorf("events: got %+v, want none", got)
		}
	})
}

// TestDeadEngineCostsFewTries: after one refused connection nothing starts until a
// good sample has come.
func TestDeadEngineCostsFewTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		n.fake.set(func(f *fakeEngine) { f.away, f.refuse = true, failure(reason.EngineDown, 0) })
		var all []*queue.Message
		for i := range 50 {
			all = append(all, n.send(n.message(4, tenant(fmt.Sprint(i)))))
		}
		time.Sleep(10 * time.Second)
		if got := n.store.calls(); len(got) > 50 {
			t.Errorf("releases: got %d, want at most one for each of 50", len(got))
		}
		n.fake.set(func(f *fakeEngine) { f.away, f.refuse = false, nil })
		for range all {
			c := <-n.fake.calls
			c.token(1)
			c.done()
		}
		for _, m := range all {
			if e := n.outcome(m.ID); e.Kind != response.Done {
				t.Errorf("request %s: got %+v, want done", m.ID, e)
			}
		}
	})
}

func TestPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t, func(c *Config) { c.Pool = "a100" })
		accepts := n.agent.accepts([]string{"q", "r"})
		for _, tc := range []struct {
			key  lane.Key
			want bool
		}{
			{lane.Key{Model: "q"}, true},
			{lane.Key{Model: "r", Pool: "a100"}, true},
			{lane.Key{Model: "q", Pool: "cpu"}, false},
			{lane.Key{Model: "x"}, false},
		} {
			if got := accepts(tc.key); got != tc.want {
				t.Errorf("accepts %v: got %v, want %v", tc.key, got, tc.want)
			}
		}
	})
}
