package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/queue"
	"penstock/registry"
	"penstock/scheduler"
)

// TestTiersChange: a tier that comes while the agent runs has its place at once.
func TestTiersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t, func(c *Config) {
			c.Scheduler.Tiers = []scheduler.Tier{{Name: "a", Ceiling: 1}, {Name: "b", Ceiling: 1}}
		}).run()
		n.full()
		place := func(tier string) int {
			t.Helper()
			<-n.deliver(n.message(4, big, func(m *queue.Message) { m.Lane.Tier = tier }))
			return n.debug().Decisions[0].Request.Tier
		}
		if got := place("new"); got != 1 {
			t.Errorf("a tier that is not known: place %d, want the last", got)
		}
		n.agent.SetTiers([]scheduler.Tier{{Name: "new", Ceiling: 1}, {Name: "a", Ceiling: 1}, {Name: "b", Ceiling: 1}})
		if one, last := place("new"), place("b"); one != 0 || last != 2 {
			t.Errorf("once it is known: places %d and %d, want 0 and 2", one, last)
		}
	})
}

// TestReliefIsInTheRow: the backlog of the engine's models, by tier, reaches the
// scheduler, and what it makes of it the row.
func TestReliefIsInTheRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t, func(c *Config) {
			c.Scheduler.Tiers = []scheduler.Tier{{Name: "vip", Ceiling: 1}, {Name: "batch", Ceiling: 0.2}}
		})
		n.waiting = []registry.Backlog{
			{Tier: "batch", Model: "q", Requests: 6000}, {Tier: "an older one", Model: "q", Requests: 6000}, {Tier: "vip", Model: "other", Requests: 20_000},
		}
		n.run()
		time.Sleep(4 * time.Second)
		if got := n.agent.Row(time.Now()).Relief; got != 0 {
			t.Fatalf("relief after 4 s: %b, want none", got)
		}
		time.Sleep(3 * time.Second)
		if got := n.agent.Row(time.Now()).Relief; got != 0b10 {
			t.Errorf("relief after 7 s: %b, want that of tier batch, which unknown tiers count as", got)
		}
	})
}
