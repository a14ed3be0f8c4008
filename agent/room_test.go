package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/agent/state"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/scheduler"
)

// deliver hands m to the agent without a lane in between.
func (n *node) deliver(m *queue.Message) chan queue.Result {
	n.t.Helper()
	n.open(m)
	result := make(chan queue.Result, 1)
	go func() { result <- n.agent.handle(n.t.Context(), m, func() {}) }()
	synctest.Wait()
	return result
}

func (n *node) debug() state.State { return n.agent.DebugState().(state.State) }

func (n *node) held() []state.Held { return n.agent.State(time.Now()).Room }

func TestRoomBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		n.full()
		from := time.Now()
		var in []chan queue.Result
		for i := range 4 { // two lanes of two
			in = append(in, n.deliver(n.message(4, big, tenant(fmt.Sprint(i/2)))))
		}
		third := n.deliver(n.message(4, big, tenant("0")))
		if len(third) != 1 {
			t.Fatal("third of one lane: got held, want suspended")
		}
		for i := range 4 {
			in = append(in, n.deliver(n.message(4, big, tenant(fmt.Sprint(10+i)))))
		}
		time.Sleep(time.Millisecond)
		ninth := n.deliver(n.message(4, big, tenant("99")))
		if len(ninth) != 1 || len(n.held()) != 8 {
			t.Fatalf("ninth: got %d answers and %d in the room, want suspended and 8", len(ninth), len(n.held()))
		}
		if d := n.debug().Decisions[0]; d.Action != "suspend" || d.After < queue.MinSuspend {
			t.Errorf("ninth: got %+v, want suspend with a pause", d)
		}
		// One whose turn is before theirs takes the last one's place.
		urgent := n.deliver(n.message(4, big, tenant("98"), func(m *queue.Message) { m.Deadline = m.Deadline.Add(-time.Second) }))
		if len(urgent) != 0 || len(n.held()) != 8 {
			t.Fatalf("urgent: got %d answers and %d in the room, want held and 8", len(urgent), len(n.held()))
		}
		left := 0
		for _, r := range in {
			left += len(r)
		}
		if d := n.debug().Decisions[1]; left != 1 || d.Reason != reason.RoomFull.String() {
			t.Errorf("%d left the room, the last decisions are %+v; want one, room_full", left, n.debug().Decisions[:2])
		}
		for _, r := range append(in, urgent) {
			<-r
		}
		if took := time.Since(from); took != n.cfg.RoomHold+time.Millisecond {
			t.Errorf("held for %v, want %v", took, n.cfg.RoomHold)
		}
		if len(n.held()) != 0 {
			t.Errorf("room: got %v, want empty", n.held())
		}
	})
}

// TestRoomOrder: what comes free goes to the head that waits longest, at the event
// that frees it, and not to one that has just come.
func TestRoomOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		n.full()
		a := n.message(4, big, tenant("a"))
		time.Sleep(20 * time.Millisecond)
		b := n.message(4, big, tenant("b"))
		rb := n.deliver(b)
		ra := n.deliver(a)
		n.fake.set(func(f *fakeEngine) { f.sample.KV = 0.5 })
		from := time.Now()
		first := <-n.fake.calls
		if took := time.Since(from); took > 50*time.Millisecond {
			t.Errorf("started after %v, want with the next sample", took)
		}
		if string(first.Body) == "" || len(n.fake.calls) != 0 && len(n.held()) != 0 {
			t.Errorf("got %d more calls", len(n.fake.calls))
		}
		if got := n.agent.running.Has(a.ID); !got {
			t.Error("first start: got b, want a, which was opened earlier")
		}
		first.token(1)
		first.done()
		<-ra
		second := <-n.fake.calls
		second.token(1)
		second.done()
		<-rb
	})
}

// TestRoomArrival: a head that comes while others are held is started in the
// room's order.
func TestRoomArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		n.full()
		old := n.deliver(n.message(4, big, tenant("a")))
		small := n.deliver(n.message(4, tenant("b"))) // it fits beside what runs
		c := <-n.fake.calls
		if len(old) != 0 || len(n.held()) != 1 {
			t.Fatalf("held: got %v, want the big one alone", n.held())
		}
		c.token(1)
		c.done()
		<-small
		<-old
	})
}

// TestLoneLane: nothing is held on an idle engine, whatever its tenant had before.
func TestLoneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		time.Sleep(time.Second)
		for range 20 {
			from := time.Now()
			r := n.deliver(n.message(4, big, tenant("a")))
			c := <-n.fake.calls
			if took := time.Since(from); took != 0 {
				t.Fatalf("started after %v, want at once", took)
			}
			c.token(1)
			c.done()
			<-r
			time.Sleep(100 * time.Millisecond)
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

func TestRoomLeavesAreSettled(t *testing.T) {
	r := newRoom(2, 1)
	a, b := &head{id: "a", answer: make(chan answer, 1)}, &head{id: "b", answer: make(chan answer, 1)}
	r.add(a, &scheduler.Request{Hash: 1})
	r.add(b, &scheduler.Request{Hash: 2})
	r.leave(0, answer{Verdict: scheduler.Verdict{Action: scheduler.Drop}})
	if got := <-a.answer; got.Action != scheduler.Drop || r.find(a) != -1 || r.find(b) != 0 || r.reqs[0].Hash != 2 {
		t.Errorf("after a left: got %+v, a at %d, b at %d, requests %+v", got, r.find(a), r.find(b), r.reqs)
	}
}
