package inbox

import (
	"strings"
	"testing"

	"penstock/reason"
	"penstock/response"
)

func TestRelaysOneAttemptWithoutHoles(t *testing.T) {
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
		fate   Fate
		end    response.Kind
	}{
		{"in order", []ev{{"a", 1, first, "1"}, {"a", 2, chunk, "2"}, {"a", 3, done, "3"}}, "123", Ended, done},
		{"duplicates", []ev{{"a", 1, first, "1"}, {"a", 1, first, "1"}, {"a", 2, chunk, "2"}, {"a", 1, first, "1"}, {"a", 2, chunk, "2"}}, "12", Open, 0},
		{"heartbeats count", []ev{{"a", 1, beat, ""}, {"a", 2, first, "1"}, {"a", 3, beat, ""}, {"a", 4, chunk, "2"}}, "12", Open, 0},
		{"hole", []ev{{"a", 1, first, "1"}, {"a", 3, chunk, "3"}}, "1", Lost, 0},
		{"hole at the start", []ev{{"a", 2, chunk, "2"}}, "", Lost, 0},
		{"hole before done", []ev{{"a", 1, first, "1"}, {"a", 3, done, "3"}}, "1", Lost, 0},
		{"nothing after a hole", []ev{{"a", 1, first, "1"}, {"a", 3, chunk, "3"}, {"a", 4, chunk, "4"}}, "1", Lost, 0},
		{"other attempt's bytes", []ev{{"a", 1, first, "1"}, {"b", 1, first, "x"}, {"b", 2, chunk, "y"}, {"a", 2, chunk, "2"}}, "12", Open, 0},
		{"second try after a heartbeat", []ev{{"a", 1, beat, ""}, {"b", 1, beat, ""}, {"a", 1, beat, ""}, {"b", 2, first, "1"}}, "1", Open, 0},
		{"other attempt's whole answer", []ev{{"a", 1, first, "1"}, {"b", 1, done, "x"}}, "1", Lost, 0},
		{"other attempt ends it", []ev{{"a", 1, first, "1"}, {"b", 1, bad, "x"}}, "1", Ended, bad},
		{"ended by one that cannot know the number", []ev{{"a", 1, first, "1"}, {"a", 2, chunk, "2"}, {"a", 1, bad, "x"}}, "12", Ended, bad},
		{"never started", []ev{{"", 1, drop, ""}}, "", Ended, drop},
		{"nothing after the end", []ev{{"a", 1, first, "1"}, {"a", 2, done, "2"}, {"a", 3, chunk, "3"}, {"b", 1, bad, ""}}, "12", Ended, done},
		{"too many attempts", []ev{{"a", 1, beat, ""}, {"b", 1, beat, ""}, {"c", 1, beat, ""}, {"d", 1, beat, ""}, {"e", 1, beat, ""}, {"f", 1, beat, ""}}, "", Lost, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := New(true, 1<<20, nil)
			for _, e := range c.events {
				w.Push(&response.Event{Attempt: e.attempt, Seq: e.seq, Kind: e.kind, Payload: []byte(e.payload), Reason: reason.Finished})
			}
			b := w.Take(nil)
			if string(b.Buf) != c.bytes || b.Fate != c.fate || b.End.Kind != c.end {
				t.Errorf("bytes %q fate %d end %d, want %q %d %d", b.Buf, b.Fate, b.End.Kind, c.bytes, c.fate, c.end)
			}
		})
	}
}

func TestCopies(t *testing.T) {
	payload, node := []byte("data"), []byte("node")
	w := New(false, 1<<20, nil)
	w.Push(&response.Event{Attempt: "a", Seq: 1, Kind: response.Done, Payload: payload, Node: string(node)})
	copy(payload, "XXXX")
	if b := w.Take(nil); string(b.End.Payload) != "data" || b.Node != "node" {
		t.Errorf("kept %q, want a copy", b.End.Payload)
	}
}

func TestCutsOffASlowClient(t *testing.T) {
	freed := 0
	w := New(true, 10, func() { freed++ })
	push := func(seq uint64, n int) {
		w.Push(&response.Event{Attempt: "a", Seq: seq, Kind: response.Chunk, Payload: []byte(strings.Repeat("x", n))})
	}
	push(1, 100) // one event larger than the bound is fine: nothing waits
	if b := w.Take(nil); b.Fate != Open || len(b.Buf) != 100 {
		t.Fatalf("fate %d, %d bytes, want all of one large event", b.Fate, len(b.Buf))
	}
	push(2, 6)
	push(3, 6)
	push(4, 6)
	if b := w.Take(nil); b.Fate != Slow || freed != 1 || !w.WasCut() {
		t.Errorf("fate %d, freed %d, cut %v, want slow, once", b.Fate, freed, w.WasCut())
	}
	w.Close()
	w.TimedOut()
	if freed != 1 {
		t.Errorf("unhang ran after close")
	}
}

func TestPushAllocatesNothing(t *testing.T) {
	ws := NewAll()
	w := New(true, 1<<20, nil)
	ws.Put("0123", w)
	e := response.Event{ID: "0123", Attempt: "a", Kind: response.Chunk, Payload: []byte("data: {}\n\n")}
	spare := make([]byte, 0, 4096)
	if got := testing.AllocsPerRun(1000, func() {
		e.Seq++
		ws.Handle(e)
		<-w.Signal()
		spare = w.Take(spare[:0]).Buf
	}); got != 0 {
		t.Errorf("%v allocations per event, want 0", got)
	}
}
