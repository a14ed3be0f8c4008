package memory

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"penstock/response"
	"penstock/response/responsetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	responsetest.Run(t, responsetest.Spec{
		Start: func(*testing.T) responsetest.Harness {
			b := New()
			return responsetest.Harness{Open: b.Open, Append: b.Append}
		},
		Lag: time.Second,
	})
}

func TestOpenTwice(t *testing.T) {
	b := New()
	none := func(response.Event) {}
	closeFirst, err := b.Open("gw", none)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if _, err := b.Open("gw", none); err == nil {
		t.Error("an open address was opened again")
	}
	closeFirst()
	if _, err := b.Open("gw", none); err != nil {
		t.Errorf("Open after close: %v", err)
	}
}

func TestAppendRunsTheMailboxFirst(t *testing.T) {
	b := New()
	var got response.Event
	if _, err := b.Open("gw", func(e response.Event) { got = e }); err != nil {
		t.Fatalf("Open: %v", err)
	}
	event := response.Append(nil, &response.Event{ID: "x", Seq: 1, Kind: response.Chunk, Payload: []byte("hi")})
	if err := b.Append("gw", event); err != nil {
		t.Fatalf("Append: %v", err)
	}
	if string(got.Payload) != "hi" {
		t.Errorf("after Append the mailbox has %q, want hi", got.Payload)
	}
}

func TestAppendRefusesOtherBytes(t *testing.T) {
	b := New()
	if _, err := b.Open("gw", func(e response.Event) { t.Errorf("the mailbox got %+v", e) }); err != nil {
		t.Fatalf("Open: %v", err)
	}
	if err := b.Append("gw", []byte{response.Version, 0}); !errors.Is(err, response.ErrMalformed) {
		t.Errorf("Append of no event = %v, want ErrMalformed", err)
	}
	var version response.VersionError
	if err := b.Append("gw", []byte{9}); !errors.As(err, &version) {
		t.Errorf("Append of another version = %v, want a VersionError", err)
	}
}

// BenchmarkToken is one chunk from the agent's Writer to the gateway's mailbox.
func BenchmarkToken(b *testing.B) {
	bus := New()
	if _, err := bus.Open("gw", func(response.Event) {}); err != nil {
		b.Fatal(err)
	}
	e := response.Event{Kind: response.Chunk, Payload: make([]byte, 250)}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := response.NewWriter("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210", "gw", bus.Append)
		for pb.Next() {
			if err := w.Append(e); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
