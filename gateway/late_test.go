package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/queue"
	"penstock/registry"
)

// dullRecords does not answer the first cancels.
type dullRecords struct {
	registry.Records
	deaf int
}

func (d *dullRecords) Cancel(ctx context.Context, id string, onlyIfQueued bool) (registry.Canceled, error) {
	if d.deaf > 0 {
		d.deaf--
		return registry.Canceled{}, registry.ErrAway
	}
	return d.Records.Cancel(ctx, id, onlyIfQueued)
}

// TestLateCancel: a request whose send failed while the store was away is cancelled
// once the store answers, so that it never runs for a client that was refused.
func TestLateCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(_ *Config, d *Deps) {
			d.Records = &dullRecords{d.Records, 5}
			d.Publish = func(context.Context, *queue.Message) error { return errors.New("no answer in time") }
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.g.cancelLate(ctx); close(done) }()
		rec, _, finished := s.ask(plainBody)
		<-finished
		if rec.code() != 503 {
			t.Errorf("got %d, want 503", rec.code())
		}
		waiting := func() int { return s.records.Backlog(time.Now())[0].Requests }
		if waiting() != 1 {
			t.Errorf("%d wait at first, want the one that could not be cancelled", waiting())
		}
		time.Sleep(5 * latePause)
		if waiting() != 0 {
			t.Errorf("%d wait after the store answered, want none", waiting())
		}
		stop()
		<-done
	})
}
