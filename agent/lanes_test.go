package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/lane"
	"penstock/queue"
	"penstock/reason"
	"penstock/scheduler"
)

// TestLaneLimit: no more of a lane run than the policy lets, other lanes do not notice;
// a higher limit holds for the next head, a lower one cuts nobody off.
func TestLaneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t)
		limit := 2
		n.agent.core.lanes.limit = func(k lane.Key) int {
			if k.Tenant == "free" {
				return 0
			}
			return limit
		}
		n.run()
		var out []chan queue.Result
		var calls []*upcall
		start := func(name string) {
			t.Helper()
			r := n.deliver(n.message(4, tenant(name)))
			if len(n.fake.calls) != 1 {
				t.Fatalf("%s: not started, %+v", name, n.debug().Decisions[0])
			}
			out, calls = append(out, r), append(calls, <-n.fake.calls)
		}
		refuse := func(name string) {
			t.Helper()
			r := n.deliver(n.message(4, tenant(name)))
			if len(n.fake.calls) != 0 || len(r) != 0 {
				t.Fatalf("%s: got a start or an answer, want it to wait for one of its lane", name)
			}
			<-r
			if d := n.debug().Decisions[0]; d.Reason != reason.LaneLimit.String() || d.After != lanePause {
				t.Fatalf("%s: %+v, want lane_concurrency", name, d)
			}
		}
		end := func(i int) {
			calls[i].token(1)
			calls[i].done()
			<-out[i]
		}
		start("a")
		start("a")
		refuse("a")
		start("free")
		start("free")
		start("free")
		start("b")
		limit = 3
		start("a")
		refuse("a")
		limit = 1
		end(0)
		refuse("a")
		end(1)
		refuse("a")
		end(5 + 1)
		start("a")
		for _, i := range []int{2, 3, 4, 5} {
			end(i)
		}
		next := n.deliver(n.message(4, tenant("a")))
		if second := n.deliver(n.message(4, tenant("a"))); len(second) != 1 || len(next) != 0 {
			t.Errorf("one of a lane is to wait for an end, not %d of two", 2-len(second)-len(next))
		}
		end(7)
		synctest.Wait()
		if len(n.fake.calls) != 1 {
			t.Fatal("the place that came free was not taken at once")
		}
		out, calls = append(out, next), append(calls, <-n.fake.calls)
		end(8)
		n.agent.core.mu.Lock()
		defer n.agent.core.mu.Unlock()
		if left := n.agent.core.lanes.running; len(left)+len(n.agent.core.lanes.parked) != 0 {
			t.Errorf("counts left: %v, %v", left, n.agent.core.lanes.parked)
		}
	})
}

// TestTiersChange: a tier that comes while the agent runs has its place at once, also
// for what waits in the room.
func TestTiersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t, func(c *Config) {
			c.Scheduler.Tiers = []scheduler.Tier{{Name: "a", Ceiling: 1}, {Name: "b", Ceiling: 1}}
		}).run()
		n.full()
		of := func(tier string) func(*queue.Message) { return func(m *queue.Message) { m.Lane.Tier = tier } }
		held := n.deliver(n.message(4, big, of("new")))
		place := func() int {
			n.agent.core.mu.Lock()
			defer n.agent.core.mu.Unlock()
			return n.agent.core.room.reqs[0].Tier
		}
		if got := place(); got != 1 {
			t.Fatalf("a tier that is not known: place %d, want the last", got)
		}
		n.agent.SetTiers([]scheduler.Tier{{Name: "new", Ceiling: 1}, {Name: "a", Ceiling: 1}, {Name: "b", Ceiling: 1}})
		if got := place(); got != 0 {
			t.Errorf("once it is known: place %d, want the first", got)
		}
		<-held
		n.deliver(n.message(4, of("b")))
		if d := n.debug().Decisions[0]; d.Request.Tier != 2 {
			t.Errorf("tier b: place %d, want 2", d.Request.Tier)
		}
		for len(n.fake.calls) > 0 {
			c := <-n.fake.calls
			c.token(1)
			c.done()
		}
		time.Sleep(time.Second)
	})
}
