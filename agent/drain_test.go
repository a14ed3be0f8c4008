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
	t.Run("what runs may end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			m := n.send(n.message(4))
			c := <-n.fake.calls
			c.token(1)
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
	})
	t.Run("the rest is cut after the grace", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			streaming := n.send(n.message(4, tenant("a")))
			(<-n.fake.calls).token(1)
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
	})
	t.Run("no record store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			n.send(n.message(4))
			(<-n.fake.calls).token(1)
			synctest.Wait()
			n.store.set(func(s *store) { s.away = true })
			from := time.Now()
			n.stop()
			n.returned(from, n.cfg.Grace+cutWithin)
		})
	})
	t.Run("held heads go back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			n.full()
			result := n.deliver(n.message(4, big))
			from := time.Now()
			n.stop()
			if after, again := (<-result).After(); !again || after < queue.MinSuspend || time.Since(from) > 0 {
				t.Errorf("held head: got suspend %v after %v, want at once", after, time.Since(from))
			}
		})
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
