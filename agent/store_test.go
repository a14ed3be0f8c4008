package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/vllm"
)

// TestClaims: any answer but Run gives the place in the ledger back and is followed.
func TestClaims(t *testing.T) {
	for _, tc := range []struct {
		name  string
		claim registry.Claim
		after time.Duration
	}{
		{"done", registry.Claim{Action: registry.Ack, Reason: reason.AlreadyDone}, 0},
		{"live owner", registry.Claim{Action: registry.Suspend, After: 3 * time.Second, Reason: reason.LiveOwner}, 3 * time.Second},
		{"lane's pace", registry.Claim{Action: registry.Suspend, After: 70 * time.Millisecond, Reason: reason.Paced}, 70 * time.Millisecond},
	} {
		onStage(t, tc.name, func(t *testing.T, n *node) {
			n.store.set(func(s *store) { s.claim = func(registry.Claim) registry.Claim { return tc.claim } })
			m := n.message(4)
			n.open(m)
			started := false
			n.settled(n.agent.handle(t.Context(), m, func() { started = true }), tc.after)
			if s := n.agent.State(time.Now()); started || s.View.Requests != 0 || len(n.fake.calls) != 0 {
				t.Errorf("got started %v, %d in the ledger, %d at the engine, want none", started, s.View.Requests, len(n.fake.calls))
			}
		})
	}
}

func TestStoreAway(t *testing.T) {
	onStage(t, "claim", func(t *testing.T, n *node) {
		m := n.message(4)
		n.open(m)
		n.store.set(func(s *store) { s.away = true })
		n.settled(n.agent.handle(t.Context(), m, func() {}), time.Second)
		if s := n.agent.State(time.Now()); s.View.Requests != 0 {
			t.Errorf("ledger: got %d, want 0", s.View.Requests)
		}
	})
	onStage(t, "drop", func(t *testing.T, n *node) {
		m := n.message(4, func(m *queue.Message) { m.Deadline = time.Now().Add(-time.Second) })
		n.open(m)
		n.store.set(func(s *store) { s.away = true })
		from := time.Now()
		n.settled(n.agent.handle(t.Context(), m, func() {}), time.Second)
		if took := time.Since(from); took > 0 {
			t.Errorf("held the delivery for %v, want not at all", took)
		}
	})
	onStage(t, "first event is kept until it is back", func(t *testing.T, n *node) {
		m := n.send(n.message(4))
		c := <-n.fake.calls
		n.store.set(func(s *store) { s.away = true })
		c.token(1)
		time.Sleep(5 * time.Second)
		n.store.set(func(s *store) { s.away = false })
		c.token(2)
		c.done()
		if e := n.outcome(m.ID); e.Kind != response.Done || e.Seq != 3 {
			t.Errorf("outcome: got %+v, want Done as event 3", e)
		}
	})
	onStage(t, "terminal event is kept until it is back", func(t *testing.T, n *node) {
		m, c := n.streams()
		synctest.Wait()
		n.store.set(func(s *store) { s.away = true })
		c.done()
		time.Sleep(5 * time.Second)
		if s := n.agent.State(time.Now()); s.View.Requests != 0 || s.Running != 1 {
			t.Errorf("while away: got %d in the ledger, %d running, want 0 and 1", s.View.Requests, s.Running)
		}
		n.store.set(func(s *store) { s.away = false })
		if e := n.outcome(m.ID); e.Kind != response.Done {
			t.Errorf("outcome: got %+v, want Done", e)
		}
	})
	onStage(t, "no renewal for 30 s closes the stream", func(t *testing.T, n *node) {
		m, c := n.streams()
		synctest.Wait()
		from := time.Now()
		n.store.set(func(s *store) { s.away = true })
		<-c.ctx.Done()
		if took := time.Since(from); took < 27*time.Second || took > 33*time.Second {
			t.Errorf("closed after %v, want about 30s", took)
		}
		n.store.set(func(s *store) { s.away = false })
		if e := n.outcome(m.ID); e.Reason != reason.UpstreamLost {
			t.Errorf("outcome: got %+v, want upstream_lost", e)
		}
	})
}

func TestRenewals(t *testing.T) {
	onStage(t, "a silent run stays owned", func(t *testing.T, n *node) {
		m := n.send(n.message(4, plain))
		c := <-n.fake.calls
		time.Sleep(40 * time.Second)
		if got, err := n.reg.Claim(t.Context(), registry.Start{ID: m.ID, Attempt: "x", Owner: "other", Deadline: m.Deadline, Reply: mailbox}); err != nil || got.Reason != reason.LiveOwner {
			t.Errorf("another's claim: got %+v, %v, want live_owner", got, err)
		}
		c.answer <- vllm.Answer{Status: 200, Body: []byte("{}")}
		n.outcome(m.ID)
	})
	onStage(t, "lost closes the stream", func(t *testing.T, n *node) {
		_, c := n.streams()
		n.store.set(func(s *store) { s.lose = true })
		from := time.Now()
		<-c.ctx.Done()
		if took := time.Since(from); took > registry.RenewEvery {
			t.Errorf("closed after %v, want within %v", took, registry.RenewEvery)
		}
	})
}
