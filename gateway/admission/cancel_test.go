package admission

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/queue"
	"penstock/reason"
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
		d, records := newDoor(t, func(d *Deps) {
			d.Records = &dullRecords{d.Records, 5}
			d.Publish = func(context.Context, *queue.Message) error { return errors.New("no answer in time") }
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.Run(ctx); close(done) }()
		if f := d.Enter(t.Context(), newBid("1"), &Place{}); f == nil || f.Reason != reason.BrokerAway {
			t.Errorf("got %+v, want broker_away", f)
		}
		waiting := func() int { return records.Backlog(time.Now())[0].Requests }
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
