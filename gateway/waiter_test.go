package gateway

import (
	"strings"
	"testing"

	"penstock/reason"
	"penstock/response"
)

func TestWaiterRelaysOneAttemptWithoutHoles(t *testing.T) {
	type ev struct {
		attempt string
		seq     uint64
		kind    response.Kind
		payload string
	}
	const first, chunk, beat, done, bad, drop = response.First, response.Chunk, response.Heartbeat, response.Done, response.Failed, response.Dropped
	for _, c := range []struct {
		name   string
		events []ev
		bytes  string
		fate   fate
		end    response.Kind
	}{
		{"in order", []ev{{"a", 1, first, "1"}, {"a", 2, chunk, "2"}, {"a", 3, done, "3"}}, "123", ended, done},
		{"duplicates", []ev{{"a", 1, first, "1"}, {"a", 1, first, "1"}, {"a", 2, chunk, "2"}, {"a", 1, first, "1"}, {"a", 2, chunk, "2"}}, "12", open, 0},
		{"heartbeats count", []ev{{"a", 1, beat, ""}, {"a", 2, first, "1"}, {"a", 3, beat, ""}, {"a", 4, chunk, "2"}}, "12", open, 0},
		{"hole", []ev{{"a", 1, first, "1"}, {"a", 3, chunk, "3"}}, "1", lost, 0},
		{"hole at the start", []ev{{"a", 2, chunk, "2"}}, "", lost, 0},
		{"hole before done", []ev{{"a", 1, first, "1"}, {"a", 3, done, "3"}}, "1", lost, 0},
		{"nothing after a hole", []ev{{"a", 1, first, "1"}, {"a", 3, chunk, "3"}, {"a", 4, chunk, "4"}}, "1", lost, 0},
		{"other attempt's bytes", []ev{{"a", 1, first, "1"}, {"b", 1, first, "x"}, {"b", 2, chunk, "y"}, {"a", 2, chunk, "2"}}, "12", open, 0},
		{"second try after a heartbeat", []ev{{"a", 1, beat, ""}, {"b", 1, beat, ""}, {"a", 1, beat, ""}, {"b", 2, first, "1"}}, "1", open, 0},
		{"other attempt's whole answer", []ev{{"a", 1, first, "1"}, {"b", 1, done, "x"}}, "1", lost, 0},
		{"other attempt ends it", []ev{{"a", 1, first, "1"}, {"b", 1, bad, "x"}}, "1", ended, bad},
		{"ended by one that cannot know the number", []ev{{"a", 1, first, "1"}, {"a", 2, chunk, "2"}, {"a", 1, bad, "x"}}, "12", ended, bad},
		{"never started", []ev{{"", 1, drop, ""}}, "", ended, drop},
		{"nothing after the end", []ev{{"a", 1, first, "1"}, {"a", 2, done, "2"}, {"a", 3, chunk, "3"}, {"b", 1, bad, ""}}, "12", ended, done},
		{"too many attempts", []ev{{"a", 1, beat, ""}, {"b", 1, beat, ""}, {"c", 1, beat, ""}, {"d", 1, beat, ""}, {"e", 1, beat, ""}, {"f", 1, beat, ""}}, "", lost, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWaiter(true, 1<<20, nil)
			for _, e := range c.events {
				w.push(&response.Event{Attempt: e.attempt, Seq: e.seq, Kind: e.kind, Payload: []byte(e.payload), Reason: reason.Finished})
			}
			b := w.take(nil)
			if string(b.buf) != c.bytes || b.fate != c.fate || b.end.Kind != c.end {
				t.Errorf("bytes %q fate %d end %d, want %q %d %d", b.buf, b.fate, b.end.Kind, c.bytes, c.fate, c.end)
			}
		})
	}
}

func TestWaiterCopies(t *testing.T) {
	payload, node := []byte("data"), []byte("node")
	w := newWaiter(false, 1<<20, nil)
	w.push(&response.Event{Attempt: "a", Seq: 1, Kind: response.Done, Payload: payload, Node: string(node)})
	copy(payload, "XXXX")
	if b := w.take(nil); string(b.end.Payload) != "data" || b.node != "node" {
		t.Errorf("kept %q, want a copy", b.end.Payload)
	}
}

func TestWaiterCutsOffASlowClient(t *testing.T) {
	freed := 0
	w := newWaiter(true, 10, func() { freed++ })
	push := func(seq uint64, n int) {
		w.push(&response.Event{Attempt: "a", Seq: seq, Kind: response.Chunk, Payload: []byte(strings.Repeat("x", n))})
	}
	push(1, 100) // one event larger than the bound is fine: nothing waits
	if b := w.take(nil); b.fate != open || len(b.buf) != 100 {
		t.Fatalf("fate %d, %d bytes, want all of one large event", b.fate, len(b.buf))
	}
	push(2, 6)
	push(3, 6)
	push(4, 6)
	if b := w.take(nil); b.fate != slow || freed != 1 || !w.wasCut() {
		t.Errorf("fate %d, freed %d, cut %v, want slow, once", b.fate, freed, w.wasCut())
	}
	w.close()
	w.timedOut()
	if freed != 1 {
		t.Errorf("unhang ran after close")
	}
}

func TestPushAllocatesNothing(t *testing.T) {
	ws := newWaiters()
	w := newWaiter(true, 1<<20, nil)
	ws.put("0123", w)
	e := response.Event{ID: "0123", Attempt: "a", Kind: response.Chunk, Payload: []byte(chunk1)}
	spare := make([]byte, 0, 4096)
	if got := testing.AllocsPerRun(1000, func() {
		e.Seq++
		ws.handle(e)
		<-w.signal
		spare = w.take(spare[:0]).buf
	}); got != 0 {
		t.Errorf("%v allocations per event, want 0", got)
	}
}
