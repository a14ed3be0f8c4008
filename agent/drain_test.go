package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/queue"
	"penstock/reason"
	"penstock/response"
)

func TestDrain(t *testing.T) {
	onStage(t, "what runs may end", func(t *testing.T, n *node) {
		m, c := n.streams()
		from := time.Now()
		n.stop()
		synctest.Wait()
		if h := n.agent.Health(); h.Ready || h.Reason != reason.Draining {
			t.Errorf("health: got %+v, want draining at once", h)
		}
		later := n.send(n.message(4))
		time.Sleep(20 * time.Second)
		c.token(2)
		c.done()
		n.returned(from, 20*time.Second)
		if e := n.outcome(m.ID); e.Kind != response.Done {
			t.Errorf("running request: got %+v, want done", e)
		}
		if got := n.of(later.ID); len(got) != 0 {
			t.Errorf("request after the drain: got %+v, want nothing", got)
		}
	})
	onStage(t, "the rest is cut after the grace", func(t *testing.T, n *node) {
		streaming, _ := n.streams(tenant("a"))
		n.send(n.message(4, tenant("b"), plain))
		<-n.fake.calls
		from := time.Now()
		n.stop()
		n.returned(from, n.cfg.Grace)
		if e := n.outcome(streaming.ID); e.Reason != reason.UpstreamLost {
			t.Errorf("streaming request: got %+v, want upstream_lost", e)
		}
		got := n.store.calls()
		slices.Sort(got)
		if want := []string{"finish failed upstream_lost", "release blameless=true"}; !slices.Equal(got, want) {
			t.Errorf("record: got %q, want %q", got, want)
		}
	})
	onStage(t, "no record store", func(_ *testing.T, n *node) {
		n.streams()
		synctest.Wait()
		n.store.set(func(s *store) { s.away = true })
		from := time.Now()
		n.stop()
		n.returned(from, n.cfg.Grace+cutWithin)
	})
	onStage(t, "held heads go back", func(t *testing.T, n *node) {
		n.full()
		result := n.deliver(n.message(4, big))
		from := time.Now()
		n.stop()
		if after, again := (<-result).After(); !again || after < queue.MinSuspend || time.Since(from) > 0 {
			t.Errorf("held head: got suspend %v after %v, want at once", after, time.Since(from))
		}
	})
}

// returned waits for the end of Run and compares how long that took, within a
// second.
func (n *node) returned(from time.Time, want time.Duration) {
	n.t.Helper()
	err := <-n.done
	n.done <- err // for the cleanup
	if got := time.Since(from); err != nil || got < want || got > want+time.Second {
		n.t.Errorf("Run: got %v after %v, want nil after %v", err, got, want)
	}
}

func TestPause(t *testing.T) {
	onStage(t, "what runs goes on, nothing starts until resume", func(t *testing.T, n *node) {
		m, c := n.streams()
		synctest.Wait()
		if got := n.agent.Pause(); got != 1 {
			t.Errorf("Pause: got %d in flight, want 1", got)
		}
		synctest.Wait()
		if h := n.agent.Health(); h.Ready || h.Reason != reason.Draining {
			t.Errorf("health: got %+v, want draining at once", h)
		}
		if e := n.directory(); e.State != reason.Draining {
			t.Errorf("directory: got %v, want draining", e.State)
		}
		later := n.send(n.message(4, tenant("other")))
		time.Sleep(2 * n.cfg.Grace) // the grace of a shutdown does not count
		c.token(2)
		c.done()
		if e := n.outcome(m.ID); e.Kind != response.Done {
			t.Errorf("running request: got %+v, want done", e)
		}
		time.Sleep(time.Second)
		if got := n.of(later.ID); len(got) != 0 {
			t.Errorf("request while paused: got %+v, want nothing", got)
		}
		from := time.Now()
		if was, err := n.agent.Resume(); !was || err != nil {
			t.Errorf("Resume: got %v, %v, want a drain taken back", was, err)
		}
		after, c := n.streams(tenant("new"))
		c.done()
		if e := n.outcome(after.ID); e.Kind != response.Done || time.Since(from) > time.Second {
			t.Errorf("request after resume: got %+v after %v, want done within a second", e, time.Since(from))
		}
		n.until("ready", func() bool { return n.agent.Health().Ready })
		if was, err := n.agent.Resume(); was || err != nil {
			t.Errorf("second Resume: got %v, %v, want nothing to take back", was, err)
		}
	})
	onStage(t, "shutdown after pause and resume", func(t *testing.T, n *node) {
		n.agent.Pause()
		if _, err := n.agent.Resume(); err != nil {
			t.Error(err)
		}
		_, c := n.streams()
		from := time.Now()
		n.stop()
		synctest.Wait()
		if was, err := n.agent.Resume(); was || err == nil {
			t.Errorf("Resume in a shutdown: got %v, %v, want an error", was, err)
		}
		time.Sleep(5 * time.Second)
		c.done()
		n.returned(from, 5*time.Second)
	})
	onStage(t, "shutdown while paused", func(_ *testing.T, n *node) {
		n.agent.Pause()
		from := time.Now()
		n.stop()
		n.returned(from, 0)
	})
	onStage(t, "held heads go back", func(t *testing.T, n *node) {
		n.full()
		result := n.deliver(n.message(4, big))
		synctest.Wait()
		n.agent.Pause()
		if _, again := (<-result).After(); !again {
			t.Error("held head: got an end, want suspend")
		}
	})
}

func TestConsumerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t)
		n.agent.deps.Consumer = n.queue.Consumer("node-1")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, n.agent.deps.Consumer.Run(ctx, nil)) // a second Run is an error
		if err := n.agent.Run(t.Context()); err == nil {
			t.Error("Run: got nil, want the consumer's error")
		}
	})
}
