package response

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWriterNumbersEvents(t *testing.T) {
	type written struct {
		Reply string
		Event Event
	}
	var got []written
	record := func(reply string, event []byte) error {
		e, err := Parse(append([]byte(nil), event...))
		got = append(got, written{reply, e})
		return err
	}
	w := NewWriter(testID, testAttempt, "gw1", record)
	first, err := w.Encode(Event{Kind: First, Status: 200, ID: "not mine", Seq: 99})
	if err != nil {
		t.Fatalf("Encode(first): %v", err)
	}
	if err := record("gw1", first); err != nil {
		t.Fatalf("parse of the first event: %v", err)
	}
	for _, e := range []Event{{Kind: Chunk, Payload: []byte("a")}, {Kind: Heartbeat}} {
		if err := w.Append(e); err != nil {
			t.Fatalf("Append(kind %d): %v", e.Kind, err)
		}
	}
	last, err := w.Encode(Event{Kind: Done, Status: 200})
	if err != nil {
		t.Fatalf("Encode(done): %v", err)
	}
	if err := record("gw1", last); err != nil {
		t.Fatalf("parse of the last event: %v", err)
	}
	want := []written{
		{"gw1", Event{ID: testID, Attempt: testAttempt, Seq: 1, Kind: First, Status: 200}},
		{"gw1", Event{ID: testID, Attempt: testAttempt, Seq: 2, Kind: Chunk, Payload: []byte("a")}},
		{"gw1", Event{ID: testID, Attempt: testAttempt, Seq: 3, Kind: Heartbeat}},
		{"gw1", Event{ID: testID, Attempt: testAttempt, Seq: 4, Kind: Done, Status: 200}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if err := w.Append(Event{Kind: Chunk}); !errors.Is(err, ErrEnded) {
		t.Errorf("Append after the terminal event = %v, want ErrEnded", err)
	}
	if _, err := w.Encode(Event{Kind: Failed}); !errors.Is(err, ErrEnded) {
		t.Errorf("Encode after the terminal event = %v, want ErrEnded", err)
	}
	if len(got) != len(want) {
		t.Errorf("%d events reached the mailbox, want %d", len(got), len(want))
	}
}

func TestWriterRefusesTooLarge(t *testing.T) {
	w := NewWriter(testID, testAttempt, "gw1", func(string, []byte) error { return nil })
	if _, err := w.Encode(Event{Kind: Done, Payload: make([]byte, MaxPayload+1)}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("Encode of a body past the limit = %v, want ErrTooLarge", err)
	}
	b, err := w.Encode(Event{Kind: Failed, Status: 502})
	if err != nil {
		t.Fatalf("the error event in its place: %v", err)
	}
	if e, err := Parse(b); err != nil || e.Seq != 1 {
		t.Errorf("the error event in its place has seq %d, %v; want 1", e.Seq, err)
	}
}

func TestWriterKeepsNumberOfALostEvent(t *testing.T) {
	fails := errors.New("away")
	var seqs []uint64
	w := NewWriter(testID, testAttempt, "gw1", func(_ string, event []byte) error {
		e, _ := Parse(event)
		seqs = append(seqs, e.Seq)
		if e.Seq == 2 {
			return fails
		}
		return nil
	})
	for i := range 3 {
		err := w.Append(Event{Kind: Chunk})
		if lost := i == 1; lost != errors.Is(err, fails) {
			t.Errorf("append %d = %v", i+1, err)
		}
	}
	if diff := cmp.Diff([]uint64{1, 2, 3}, seqs); diff != "" {
		t.Errorf("numbers (-want +got):\n%s", diff)
	}
}

func TestWriterAllocations(t *testing.T) {
	w := NewWriter(testID, testAttempt, "gw1", func(string, []byte) error { return nil })
	e := Event{Kind: Chunk, Payload: []byte("data: {}\n\n")}
	if got := testing.AllocsPerRun(100, func() { _ = w.Append(e) }); got != 0 {
		t.Errorf("Append of a chunk: %v allocations, want 0", got)
	}
}
