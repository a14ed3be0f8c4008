package attempt

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/abort"
	"penstock/queue"
	"penstock/reason"
	"penstock/response"
	"penstock/vllm"
)

func TestFault(t *testing.T) {
	engine := &vllm.Error{Reason: reason.EngineBusy, Status: 503, Body: []byte("{}"), Err: errors.New("busy")}
	for _, tc := range []struct {
		name  string
		cause error // of the attempt's context; nil: it has not ended
		err   error
		want  reason.Reason
	}{
		{"aborted", abort.ErrAborted, engine, reason.Aborted},
		{"mailbox gone", response.ErrGone, engine, reason.Orphan},
		{"another attempt", ErrLost, engine, reason.LiveOwner},
		{"nobody sees it work", ErrIdle, engine, reason.Stalled},
		{"drained", ErrDrained, engine, reason.Draining},
		{"the consumer stopped", context.Canceled, engine, reason.Draining},
		{"not renewed", ErrUnrenewed, engine, reason.RecordStoreAway},
		{"the engine said so", nil, engine, reason.EngineBusy},
		{"it broke", nil, errors.New("unexpected EOF"), reason.UpstreamLost},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if tc.cause != nil {
			cancel(tc.cause)
		}
		if got := Fault(ctx, tc.err); got.Reason != tc.want || tc.want == reason.EngineBusy && (got.Status != 503 || string(got.Payload) != "{}") {
			t.Errorf("%s: got %+v, want %v", tc.name, got, tc.want)
		}
		cancel(nil)
	}
}

// TestBeat: a silent attempt says every 15 s that it lives, until its last event.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []response.Event
		a := New(time.Now(), "n", &queue.Message{ID: "i", Reply: "r"}, "a", func(error) {}, func(_ string, event []byte) error {
			e, err := response.Parse(bytes.Clone(event))
			said = append(said, e)
			return err
		})
		for range 40 {
			a.Beat(time.Now())
			time.Sleep(time.Second)
		}
		if len(said) != 2 || said[0].Kind != response.Heartbeat {
			t.Errorf("40 s of silence: got %v, want 2 heartbeats", said)
		}
		if got := a.Silent(time.Now()); got != 10*time.Second {
			t.Errorf("silent for %v, want 10s, since the last heartbeat", got)
		}
		if _, err := a.Terminal(response.Done, Outcome{Reason: reason.Finished}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if a.Beat(time.Now()); len(said) != 2 {
			t.Errorf("after its last event: got %v, want no heartbeat", said[2:])
		}
	})
}
