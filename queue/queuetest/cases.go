package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/queue"
)

func arrivesWhole(r *rig) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	want := &queue.Message{
		Version: queue.Version, ID: "00112233445566778899aabbccddeeff", Lane: key("a"), Path: "/v1/chat/completions",
		Opened: now, Deadline: now.Add(time.Hour), SLOTTFT: 2 * time.Second, SLOTTFTNamed: true, Patient: true, SLOTPOT: 100 * time.Millisecond,
		PromptTokens: 1000, ExpectedOut: 200, MaxTokens: 300, Sequences: 2, Stream: true,
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Reply: "gateway-1/0",
		Body: []byte("{\"prompt\":\"a\x00\xff\"}\n"),
	}
	want.Lane.Pool = "h200"
	if err := r.queue.Publish(r.Context(), want); err != nil {
		r.Fatalf("publish: %v", err)
	}
	r.consume("n", anyLane)
	d := r.next()
	if diff := cmp.Diff(want, d.Message); diff != "" {
		r.Errorf("message on arrival (-want +got):\n%s", diff)
	}
	d.ack()
	r.quiet()
}

func fifo(r *rig) {
	var mu sync.Mutex
	got, want := map[string][]string{}, map[string][]string{}
	all := make(chan struct{})
	handled := 0
	const each = 20
	names := []string{"a", "b", "c"}
	r.handle("n", anyLane, func(_ context.Context, m *queue.Message, _ func()) queue.Result {
		mu.Lock()
		defer mu.Unlock()
		got[m.Lane.Model] = append(got[m.Lane.Model], m.ID)
		if handled++; handled == each*len(names) {
			close(all)
		}
		return queue.Ack()
	})
	for range each {
		for _, name := range names {
			m := r.publish(name)
			want[m.Lane.Model] = append(want[m.Lane.Model], m.ID)
		}
	}
	select {
	case <-all:
	case <-time.After(each * r.spec.Lag):
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("deliveries by lane (-want +got):\n%s", diff)
	}
}

func oneAtATime(r *rig) {
	first, second := r.publish("a"), r.publish("a")
	r.consume("n", anyLane)
	d := r.expect(first)
	r.quiet()
	d.ack()
	r.expect(second).ack()
}

func suspendKeepsPlace(r *rig) {
	first, second := r.publish("a"), r.publish("a")
	r.consume("n", anyLane)
	d := r.expect(first)
	for _, asked := range []time.Duration{0, 120 * time.Millisecond, time.Second} {
		least := max(asked, queue.MinSuspend)
		answered := time.Now()
		d.suspend(asked)
		d = r.expectAfter(least, first)
		if back := d.at.Sub(answered); back < least {
			r.Errorf("Suspend(%v) came back after %v, want %v or more", asked, back, least)
		}
	}
	d.ack()
	r.expect(second).ack()
}

func suspendLeavesOthers(r *rig) {
	const pause = 3 * time.Second
	held := r.publish("held")
	r.consume("n", anyLane)
	r.expect(held).suspend(pause)
	answered := time.Now()
	for i := range 10 {
		r.expect(r.publish(fmt.Sprint(i % 2))).ack()
	}
	short := r.publish("short")
	r.expect(short).suspend(queue.MinSuspend)
	r.expectAfter(queue.MinSuspend, short).ack()
	if took := time.Since(answered); took >= pause {
		r.Errorf("the messages of other lanes took %v, the whole pause", took)
	}
	r.expectAfter(pause, held).ack()
}

func suspendHoldsNoSlot(r *rig) {
	if r.spec.Concurrency == 0 {
		r.Skip("no limit to hold slots of")
	}
	r.consume("n", anyLane)
	for i := range r.spec.Concurrency {
		r.expect(r.publish(fmt.Sprint(i))).suspend(queue.MaxSuspend)
	}
	r.expect(r.publish("free")).ack()
}

func concurrency(r *rig) {
	most := r.spec.Concurrency
	lanes := most + 2
	if most == 0 {
		most, lanes = 8, 8
	}
	for i := range lanes {
		r.publish(fmt.Sprint(i))
	}
	r.consume("n", anyLane)
	var held []delivery
	for range most {
		held = append(held, r.next())
	}
	r.quiet()
	for range lanes - most {
		held[0].ack()
		held = append(held[1:], r.next())
	}
	for _, d := range held {
		d.ack()
	}
}

func started(r *rig) {
	first, second := r.publish("a"), r.publish("a")
	r.consume("n", anyLane)
	d := r.expect(first)
	d.started()
	if !r.spec.StartedFrees {
		r.quiet()
		d.ack()
		r.expect(second).ack()
		return
	}
	r.expect(second).ack()
	if d.ctx.Err() != nil {
		r.Errorf("the context of a started message ended: %v", d.ctx.Err())
	}
	d.started() // once more is harmless
	d.ack()
	r.quiet()
}

func startedThenSuspended(r *rig) {
	if !r.spec.StartedFrees {
		r.Skip("started has no effect")
	}
	first, second, third := r.publish("a"), r.publish("a"), r.publish("a")
	r.consume("n", anyLane)
	d := r.expect(first)
	d.started()
	undecided := r.expect(second)
	d.suspend(0)
	r.quiet()
	undecided.suspend(0)
	r.expect(first).ack()
	r.expectAfter(queue.MinSuspend, second).ack()
	r.expect(third).ack()
}

func consumerStops(r *rig) {
	first, second := r.publish("a"), r.publish("a")
	_, stop := r.consume("n1", anyLane)
	r.expect(first).ack()
	undecided := r.expect(second)
	stop()
	if undecided.ctx.Err() == nil {
		r.Error("the handler's context did not end with its consumer")
	}
	r.quiet()
	r.consume("n2", anyLane)
	r.expect(second).ack()
	r.quiet()
}

func runWaits(r *rig) {
	r.publish("a")
	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	_, stop := r.handle("n", anyLane, func(ctx context.Context, _ *queue.Message, _ func()) queue.Result {
		close(entered)
		<-ctx.Done()
		<-leave
		close(left)
		return queue.Ack()
	})
	<-entered
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
		r.Error("Run returned while a handler ran")
	case <-time.After(r.spec.Quiet):
	}
	close(leave)
	<-stopped
	select {
	case <-left:
	default:
		r.Error("Run returned before its handler")
	}
	r.consume("n2", anyLane)
	r.quiet() // the Ack counted
}

func acceptNothing(r *rig) {
	first, second := r.publish("a"), r.publish("a")
	c, _ := r.consume("n", nil)
	r.quiet()
	c.Accept(anyLane)
	d := r.expect(first)
	c.Accept(nil)
	third := r.publish("b")
	r.quiet()
	if d.ctx.Err() != nil {
		r.Errorf("Accept(nil) ended a running handler's context: %v", d.ctx.Err())
	}
	d.ack()
	r.quiet()
	c.Accept(anyLane)
	var got []string
	for range 2 {
		d := r.next()
		got = append(got, d.ID)
		d.ack()
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{second.ID, third.ID}, got); diff != "" {
		r.Errorf("after the drain (-want +got):\n%s", diff)
	}
}

func acceptMatches(r *rig) {
	r.consume("na", only("a"))
	c, _ := r.consume("nb", only("b"))
	for range 3 {
		for _, name := range []string{"a", "b"} {
			d := r.expect(r.publish(name))
			if d.node != "n"+name {
				r.Errorf("lane %s went to %s", name, d.node)
			}
			d.ack()
		}
	}
	kept := r.publish("c")
	r.quiet()
	c.Accept(only("c"))
	d := r.expect(kept)
	if d.node != "nb" {
		r.Errorf("lane c went to %s, want nb", d.node)
	}
	d.ack()
}

func suspendMovesOn(r *rig) {
	m := r.publish("a")
	_, stop := r.consume("n1", anyLane)
	r.expect(m).suspend(time.Second)
	r.consume("n2", anyLane)
	stop()
	d := r.expectAfter(time.Second, m)
	if d.node != "n2" {
		r.Errorf("delivered to %s, want n2", d.node)
	}
	d.ack()
}

func bounds(r *rig) {
	if r.spec.LaneRequests == 0 {
		r.Skip("lanes are bounded elsewhere")
	}
	first := r.publish("a")
	for range r.spec.LaneRequests - 1 {
		r.publish("a")
	}
	more := &queue.Message{Version: queue.Version, ID: fmt.Sprintf("%032x", 1<<40), Lane: key("a")}
	if err := r.queue.Publish(r.Context(), more); !errors.Is(err, queue.ErrFull) {
		r.Fatalf("publish to a full lane = %v, want ErrFull", err)
	}
	r.publish("b")
	_, stop := r.consume("n", only("a"))
	r.expect(first).ack()
	r.next() // the acknowledgement is through
	stop()
	if err := r.queue.Publish(r.Context(), more); err != nil {
		r.Errorf("publish after one left = %v, want nil", err)
	}
}

func publishRefuses(r *rig) {
	gone, cancel := context.WithCancel(r.Context())
	cancel()
	m := &queue.Message{Version: queue.Version, ID: fmt.Sprintf("%032x", 1<<40), Lane: key("a")}
	if err := r.queue.Publish(gone, m); !errors.Is(err, context.Canceled) {
		r.Errorf("publish with an ended context = %v, want context.Canceled", err)
	}
	before := r.publish("a")
	r.queue.Close()
	if err := r.queue.Publish(r.Context(), m); !errors.Is(err, queue.ErrClosed) {
		r.Errorf("publish after Close = %v, want ErrClosed", err)
	}
	r.consume("n", anyLane)
	r.expect(before).ack()
	r.quiet()
}
