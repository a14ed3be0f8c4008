package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/agent/room"
	"penstock/agent/state"
	"penstock/lane"
	"penstock/queue"
	"penstock/reason"
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

// TestLaneLimit: no more of a lane run than the policy lets, other lanes do not notice;
// a higher limit holds for the next head, a lower one cuts nobody off.
func TestLaneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t)
		limit := 2
		n.limit = func(k lane.Key) int {
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
			if d := n.debug().Decisions[0]; d.Reason != reason.LaneLimit.String() || d.After != room.LanePause {
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
	})
}
