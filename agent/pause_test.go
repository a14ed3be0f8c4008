package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/reason"
	"penstock/response"
)

func TestPause(t *testing.T) {
	t.Run("what runs goes on, nothing starts until resume", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			m := n.send(n.message(4))
			c := <-n.fake.calls
			c.token(1)
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
			after := n.send(n.message(4, tenant("new")))
			c = <-n.fake.calls
			c.token(1)
			c.done()
			if e := n.outcome(after.ID); e.Kind != response.Done || time.Since(from) > time.Second {
				t.Errorf("request after resume: got %+v after %v, want done within a second", e, time.Since(from))
			}
			n.until("ready", func() bool { return n.agent.Health().Ready })
			if was, err := n.agent.Resume(); was || err != nil {
				t.Errorf("second Resume: got %v, %v, want nothing to take back", was, err)
			}
		})
	})
	t.Run("shutdown after pause and resume", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			n.agent.Pause()
			if _, err := n.agent.Resume(); err != nil {
				t.Error(err)
			}
			n.send(n.message(4))
			c := <-n.fake.calls
			c.token(1)
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
	})
	t.Run("shutdown while paused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			n.agent.Pause()
			from := time.Now()
			n.stop()
			n.returned(from, 0)
		})
	})
	t.Run("held heads go back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newStage(t).run()
			n.full()
			result := n.deliver(n.message(4, big))
			synctest.Wait()
			n.agent.Pause()
			if _, again := (<-result).After(); !again {
				t.Error("held head: got an end, want suspend")
			}
		})
	})
}
