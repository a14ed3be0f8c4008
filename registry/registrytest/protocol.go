package registrytest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
	"penstock/registry"
)

func testLife(r *rig) {
	r.open("1")
	r.waiting(1)
	if c := r.claim("1", "a", registry.Run, reason.OK); c.Tries != 1 {
		r.Errorf("first claim: try %d, want 1", c.Tries)
	}
	r.waiting(0)
	r.first("1", "a", true)
	r.finish("1", "a", true)
	r.events("first 1 a", "end 1 a finished")
	r.claim("1", "b", registry.Ack, reason.AlreadyDone)
	r.renew("1", "a", false)
	r.first("1", "a", false)
	r.cancel("1", false, registry.Finished)
	r.events("first 1 a", "end 1 a finished")
}

func testRepeats(r *rig) {
	r.open("1")
	r.open("1")
	r.waiting(1)
	r.run("1", "a")
	if c := r.claim("1", "a", registry.Run, reason.OK); c.Tries != 1 {
		r.Errorf("repeated claim: try %d, want 1", c.Tries)
	}
	r.release("1", "a", false)
	r.release("1", "a", false)
	r.waiting(1)
	r.run("1", "b")
	r.first("1", "b", true)
	r.first("1", "b", true)
	r.finish("1", "b", true)
	r.finish("1", "b", true)
	r.release("1", "b", false)
	r.waiting(0)
	r.events("first 1 b", "end 1 b finished")
}

func testClaimOrder(r *rig) {
	late, err := r.Records.Claim(r.ctx, registry.Start{ID: "0", Attempt: "a", Owner: "oa", Lane: chat, Deadline: r.Now(), Reply: reply})
	r.ok(err)
	if want := (registry.Claim{Action: registry.Ack, Reason: reason.DeadlinePassed}); late != want {
		r.Errorf("claim of an unknown request past its deadline: %+v, want %+v", late, want)
	}
	r.run("1", "a") // unknown, in time: as queued
	if c := r.claim("1", "b", registry.Suspend, reason.LiveOwner); c.After <= registry.Ownership || c.After > registry.Ownership+time.Second/2 {
		r.Errorf("a live owner's request is suspended for %v, want just over %v", c.After, registry.Ownership)
	}
	r.Live(reply, false)
	r.claim("1", "b", registry.Suspend, reason.LiveOwner)
	r.cancel("1", false, registry.Running)
	r.claim("1", "b", registry.Ack, reason.Aborted)
	r.finish("1", "a", true)
	r.claim("1", "b", registry.Ack, reason.AlreadyDone)
}

func testDeadOwner(r *rig) {
	r.open("1")
	r.run("1", "a")
	r.Advance(registry.Ownership + time.Second/2)
	if c := r.claim("1", "b", registry.Run, reason.OK); c.Tries != 2 {
		r.Errorf("second claim: try %d, want 2", c.Tries)
	}
	r.renew("1", "a", false)
	r.first("1", "a", false)
	r.finish("1", "a", false)
	r.release("1", "a", false)
	r.first("1", "b", true)
	r.finish("1", "b", true)
	r.events("first 1 b", "end 1 b finished")
}

func testDeadStream(r *rig) {
	r.open("1")
	r.run("1", "a")
	r.Advance(registry.Ownership - time.Second)
	r.first("1", "a", true)
	r.Advance(registry.Ownership - time.Second)
	r.claim("1", "b", registry.Suspend, reason.LiveOwner) // the first byte prolongs
	r.release("1", "a", true)                             // too late to give back
	r.Advance(2 * time.Second)
	r.claim("1", "b", registry.Ack, reason.UpstreamLost)
	r.finish("1", "a", true)
	r.events("first 1 a", "end 1 a upstream_lost")
}

func testRenew(r *rig) {
	r.open("1")
	r.run("1", "a")
	for range 5 {
		r.Advance(registry.RenewEvery)
		r.renew("1", "a", true)
	}
	r.claim("1", "b", registry.Suspend, reason.LiveOwner)
	r.Advance(2 * registry.Ownership)
	r.renew("1", "a", true) // nobody else came meanwhile
	r.claim("1", "b", registry.Suspend, reason.LiveOwner)
	r.renew("1", "b", false)
	r.release("1", "a", true)
	r.renew("1", "a", false)
}

func testLostRecord(r *rig) {
	r.renew("1", "a", true)
	r.claim("1", "b", registry.Suspend, reason.LiveOwner)
	r.first("1", "a", true)
	r.finish("1", "a", true)
	r.events("first 1 a", "end 1 a finished")
	lost, err := r.Records.Renew(r.ctx, "oa", []registry.Ref{{ID: "2", Attempt: "a", Reply: reply, Streaming: true}})
	r.ok(err)
	if len(lost) > 0 {
		r.Errorf("a record the store lost is lost to its owner: %v", lost)
	}
	r.Advance(registry.Ownership + time.Second)
	r.claim("2", "b", registry.Ack, reason.UpstreamLost) // a byte was relayed: never again
	r.events("first 1 a", "end 1 a finished", "end 2 a upstream_lost")
	r.waiting(0)
}

func testRelease(r *rig) {
	r.open("1")
	r.run("1", "a")
	r.release("1", "b", true) // not its attempt
	r.claim("1", "b", registry.Suspend, reason.LiveOwner)
	r.release("1", "a", true)
	r.waiting(1)
	if c := r.claim("1", "b", registry.Run, reason.OK); c.Tries != 1 {
		r.Errorf("claim after a blameless release: try %d, want 1", c.Tries)
	}
	r.release("1", "b", false)
	if c := r.claim("1", "c", registry.Run, reason.OK); c.Tries != 2 {
		r.Errorf("claim after a release: try %d, want 2", c.Tries)
	}
	r.first("1", "a", false)
	r.finish("1", "c", true)
	r.events("end 1 c finished")
	r.waiting(0)
}

func testTries(r *rig) {
	r.open("1")
	for _, attempt := range []string{"a", "b", "c"} {
		r.run("1", attempt)
		r.release("1", attempt, false)
	}
	r.Live(reply, false) // tries come before orphan
	r.claim("1", "d", registry.Ack, reason.TriesUsed)
	if got := len(r.Events(reply)); got != 1 {
		r.Errorf("%d events after the last try, want the terminal one", got)
	}
	r.claim("1", "e", registry.Ack, reason.AlreadyDone)
	r.waiting(0)
}

func testCancelQueued(r *rig) {
	r.open("1")
	r.cancel("1", true, registry.Queued)
	r.waiting(0)
	r.cancel("1", true, registry.Finished)
	r.claim("1", "a", registry.Ack, reason.AlreadyDone)
	r.finish("1", "", true) // a dropped delivery
	r.events()              // the canceller is who waits
	r.cancel("2", false, registry.Unknown)
	if diff := cmp.Diff([]Cancel{{ID: "1"}}, r.Cancels()); diff != "" {
		r.Errorf("told of cancels, -want +got:\n%s", diff)
	}
}

func testCancelRunning(r *rig) {
	r.open("1")
	r.run("1", "a")
	r.cancel("1", true, registry.Running)
	r.renew("1", "a", true)
	if c := r.cancel("1", false, registry.Running); c.Owner != "oa" || c.Attempt != "a" {
		r.Errorf("cancel found %+v, want owner oa, attempt a", c)
	}
	r.renew("1", "a", false)
	r.first("1", "a", false)
	r.finish("1", "a", true)
	r.events("end 1 a finished")

	r.open("2")
	r.run("2", "b")
	r.first("2", "b", true)
	r.cancel("2", true, registry.Streaming)
	r.cancel("2", false, registry.Streaming)
	r.cancel("2", false, registry.Streaming)
	r.finish("2", "b", true)

	r.open("3")
	r.run("3", "c")
	r.cancel("3", false, registry.Running)
	r.release("3", "c", true) // nobody will run it any more
	r.claim("3", "d", registry.Ack, reason.AlreadyDone)
	r.events("end 1 a finished", "first 2 b", "end 2 b finished", "end 3 c aborted")
	want := []Cancel{{"oa", "1", "a"}, {"ob", "2", "b"}, {"ob", "2", "b"}, {"oc", "3", "c"}}
	if diff := cmp.Diff(want, r.Cancels()); diff != "" {
		r.Errorf("told of cancels, -want +got:\n%s", diff)
	}
}

func testCancelDead(r *rig) {
	r.open("1")
	r.run("1", "a")
	r.Advance(registry.Ownership + time.Second)
	r.cancel("1", true, registry.Queued) // it waits for its next start
	r.claim("1", "b", registry.Ack, reason.AlreadyDone)

	r.open("2")
	r.run("2", "a")
	r.cancel("2", false, registry.Running)
	r.Advance(registry.Ownership + time.Second)
	r.claim("2", "b", registry.Ack, reason.Aborted)
	r.claim("2", "b", registry.Ack, reason.AlreadyDone)
	r.events("end 2 a aborted")
}

func testFinish(r *rig) {
	r.open("1")
	r.finish("1", "", true) // dropped, never started
	r.finish("1", "", true)
	r.waiting(0)

	r.open("2")
	r.run("2", "a")
	r.finish("2", "", false)
	r.Advance(registry.Ownership + time.Second)
	r.finish("2", "", true)

	r.open("3")
	r.run("3", "a")
	r.first("3", "a", true)
	r.Advance(registry.Ownership + time.Second)
	r.finish("3", "", true) // the client heard attempt a
	r.events("end 1  finished", "end 2  finished", "first 3 a", "end 3 a upstream_lost")
	r.finish("never seen", "a", true)
}

func testOrphan(r *rig) {
	r.open("1")
	r.Live(reply, false)
	if c := r.claim("1", "a", registry.Suspend, reason.Orphan); c.After != 2*time.Second {
		r.Errorf("orphan suspended for %v, want 2s", c.After)
	}
	r.Live(reply, true)
	r.run("1", "b")
	r.release("1", "b", true)
	r.Live(reply, false)
	r.claim("1", "c", registry.Suspend, reason.Orphan)
	r.claim("1", "c", registry.Ack, reason.Orphan)
	r.claim("1", "c", registry.Ack, reason.AlreadyDone)
	r.waiting(0)
}

func testPace(r *rig) {
	paced := chat
	paced.Tenant = "paced"
	started, last := 0, time.Duration(0)
	for begin := r.Now(); r.Now().Sub(begin) < 10*time.Second; {
		id := string(rune('a' + started))
		c, err := r.Records.Claim(r.ctx, registry.Start{ID: id, Attempt: id, Owner: "o", Lane: paced, Deadline: r.Now().Add(time.Minute), Reply: reply, Tokens: 100})
		r.ok(err)
		switch {
		case c.Action == registry.Run:
			started++
			last = r.Now().Sub(begin)
		case c.Action == registry.Suspend && c.Reason == reason.Paced && c.After > 0:
			r.Advance(c.After)
		default:
			r.Fatalf("claim %s: %+v", id, c)
		}
	}
	// One interval of tolerance at the start, then 2 per second.
	if started < 20 || started > 22 {
		r.Errorf("%d starts in 10 s (the last at %v), want about 21", started, last)
	}
	r.run("other lane", "a")
}

func testDirectory(r *rig) {
	put := func(node string) {
		r.ok(r.Directory.PutEngine(r.ctx, registry.Engine{Node: node, Models: []string{"m"}, MaxModelLen: 4096, State: reason.OK}))
	}
	list := func(want ...string) {
		r.Helper()
		got, err := r.Directory.Engines(r.ctx)
		r.ok(err)
		nodes := make([]string, len(got))
		for i, e := range got {
			nodes[i] = e.Node
		}
		if diff := cmp.Diff(want, nodes); diff != "" {
			r.Fatalf("engines, -want +got:\n%s", diff)
		}
	}
	put("b")
	put("a")
	list("a", "b")
	r.Advance(40 * time.Second)
	put("a")
	list("a", "b")
	r.Advance(35 * time.Second)
	list("a")
	got, err := r.Directory.Engines(r.ctx)
	r.ok(err)
	if age := r.Now().Sub(got[0].Seen); age < 34*time.Second || age > 37*time.Second {
		r.Errorf("engine last seen %v ago, want 35s", age)
	}
	blind := registry.Engine{Node: "a", GRPC: "a:4781", State: reason.Blind, Since: time.Now().Add(-12 * time.Second), Cause: "connection refused"}
	r.ok(r.Directory.PutEngine(r.ctx, blind))
	r.Advance(30 * time.Second)
	got, err = r.Directory.Engines(r.ctx)
	r.ok(err)
	if e := &got[0]; e.GRPC != blind.GRPC || e.Seen.Sub(e.Since).Round(time.Second) != 12*time.Second || e.Why(e.Seen.Add(100*time.Millisecond)) != "blind 12 s: connection refused" {
		r.Errorf("a blind engine is listed as %+v: %q", e, e.Why(e.Seen))
	}
}
