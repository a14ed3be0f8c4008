package response

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
)

const (
	testID      = "0123456789abcdef0123456789abcdef"
	testAttempt = "fedcba9876543210fedcba9876543210"
)

func chunk() Event {
	return Event{ID: testID, Attempt: testAttempt, Seq: 7, Kind: Chunk, Payload: []byte("data: {\"choices\":[]}\n\n")}
}

func done() Event {
	return Event{
		ID: testID, Attempt: testAttempt, Seq: 300, Kind: Done, Status: 200, Reason: reason.Finished, Node: "gpu-7",
		Tries: 2, Queued: 1234567890 * time.Nanosecond,
		Usage:   Usage{Prompt: 31000, Output: 512, Cached: 16, Known: true},
		Payload: []byte("data: [DONE]\n\n"),
	}
}

func TestRoundTrip(t *testing.T) {
	for name, e := range map[string]Event{
		"chunk":     chunk(),
		"heartbeat": {ID: testID, Attempt: testAttempt, Seq: math.MaxUint64, Kind: Heartbeat},
		"first":     {ID: testID, Attempt: testAttempt, Seq: 1, Kind: First, Status: 200, Node: "gpu-7", Tries: 1, Queued: time.Minute, Payload: []byte(": hi\n\n")},
		"done":      done(),
		"failed":    {ID: testID, Attempt: testAttempt, Seq: 1, Kind: Failed, Status: 400, Reason: reason.EngineRefused, Node: strings.Repeat("n", MaxText), Tries: 3, Payload: []byte(`{"error":{}}`)},
		"dropped":   {ID: testID, Seq: 1, Kind: Dropped, Reason: reason.DeadlinePassed, Queued: 30 * time.Second},
		"limits":    {ID: "i", Seq: 1, Kind: Done, Status: math.MaxInt32, Tries: math.MaxInt32, Queued: math.MaxInt64, Usage: Usage{Prompt: math.MaxInt32, Output: math.MaxInt32, Cached: math.MaxInt32}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(Append(nil, &e))
			if err != nil {
				t.Fatalf("Parse: %v", err)
			}
			if diff := cmp.Diff(e, got); diff != "" {
				t.Errorf("after a round trip (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryReasonTravels(t *testing.T) {
	for _, r := range append(reason.All(), reason.None) {
		got, err := Parse(Append(nil, &Event{ID: testID, Seq: 1, Kind: Failed, Reason: r}))
		if err != nil || got.Reason != r {
			t.Errorf("reason %s came back as %s, %v", r, got.Reason, err)
		}
	}
}

func TestAppendCutsWhatCannotTravel(t *testing.T) {
	e := Event{ID: strings.Repeat("x", MaxText+1), Seq: 1, Kind: Done, Status: -1, Tries: math.MaxInt64, Queued: -time.Second}
	got, err := Parse(Append(nil, &e))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	want := Event{ID: strings.Repeat("x", MaxText), Seq: 1, Kind: Done, Tries: math.MaxInt32}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cut event (-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	whole := done()
	whole.Payload = nil
	encoded := Append(nil, &whole)
	for n := range len(encoded) {
		if e, err := Parse(encoded[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("Parse of the first %d of %d bytes = %+v, %v; want ErrMalformed", n, len(encoded), e, err)
		}
	}
	for name, b := range map[string][]byte{
		"kind 0":            {Version, 0, 1, 0, 0},
		"kind past the end": {Version, byte(kindEnd), 1, 0, 0},
		"endless seq":       append([]byte{Version, byte(Chunk)}, bytes.Repeat([]byte{0xff}, 11)...),
		"known is 2":        {Version, byte(Done), 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0},
		"status too wide":   {Version, byte(First), 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0},
		"payload too large": append([]byte{Version, byte(Chunk), 1, 0, 0}, make([]byte, MaxPayload+1)...),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(b); !errors.Is(err, ErrMalformed) {
				t.Errorf("Parse = %v, want ErrMalformed", err)
			}
		})
	}
	t.Run("another version", func(t *testing.T) {
		_, err := Parse([]byte{Version + 1, byte(Chunk)})
		var version VersionError
		if !errors.As(err, &version) || byte(version) != Version+1 {
			t.Errorf("Parse = %v, want VersionError %d", err, Version+1)
		}
	})
	t.Run("a reason of a newer build", func(t *testing.T) {
		b := bytes.Replace(encoded, []byte("finished"), []byte("fin1shed"), 1)
		e, err := Parse(b)
		if err != nil || e.Reason != reason.None || e.Node != "gpu-7" {
			t.Errorf("Parse = %+v, %v; want the event with reason none", e, err)
		}
	})
}

func TestCheck(t *testing.T) {
	long := strings.Repeat("x", MaxText+1)
	for name, e := range map[string]Event{
		"id": {ID: long}, "attempt": {Attempt: long}, "node": {Node: long}, "payload": {Payload: make([]byte, MaxPayload+1)},
	} {
		if err := e.Check(); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s past its limit: Check = %v, want ErrTooLarge", name, err)
		}
	}
	if err := (&Event{ID: long[1:], Payload: make([]byte, MaxPayload)}).Check(); err != nil {
		t.Errorf("at the limits: Check = %v, want nil", err)
	}
}

func TestAllocations(t *testing.T) {
	c, d := chunk(), done()
	buf := make([]byte, 0, 1024)
	encodedChunk, encodedDone := Append(nil, &c), Append(nil, &d)
	for _, tc := range []struct {
		name string
		want float64
		f    func()
	}{
		{"append chunk", 0, func() { buf = Append(buf[:0], &c) }},
		{"append done", 0, func() { buf = Append(buf[:0], &d) }},
		{"parse chunk", 1, func() { _, _ = Parse(encodedChunk) }},
		{"parse done", 2, func() { _, _ = Parse(encodedDone) }},
	} {
		if got := testing.AllocsPerRun(100, tc.f); got != tc.want {
			t.Errorf("%s: %v allocations, want %v", tc.name, got, tc.want)
		}
	}
	c.Payload = nil
	if got := len(Append(nil, &c)); got > 70 {
		t.Errorf("a chunk costs %d bytes beside its payload, want at most 70", got)
	}
}

// FuzzParse holds that whatever parses is carried whole by Append.
func FuzzParse(f *testing.F) {
	for _, e := range []Event{chunk(), done(), {ID: testID, Seq: 1, Kind: Dropped, Reason: reason.Aborted}} {
		f.Add(Append(nil, &e))
	}
	f.Add([]byte{Version, byte(First), 0x80, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Parse(b)
		if err != nil {
			return
		}
		if err := e.Check(); err != nil {
			t.Fatalf("parsed an event past its limits: %v", err)
		}
		again, err := Parse(Append(nil, &e))
		if err != nil {
			t.Fatalf("Parse of the event encoded again: %v", err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatalf("changed on the way (-first +again):\n%s", diff)
		}
	})
}

func BenchmarkAppendChunk(b *testing.B) {
	e := chunk()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], &e)
	}
}

func BenchmarkParseChunk(b *testing.B) {
	e := chunk()
	encoded := Append(nil, &e)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(encoded); err != nil {
			b.Fatal(err)
		}
	}
}
