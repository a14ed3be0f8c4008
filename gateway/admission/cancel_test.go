package admission

import (
	"context"
	"errors"
	"slices"
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

// TestWhoIsTold: a cancel is told to everybody, a withdrawal to nobody but the queue, and
// only where it took the request out.
func TestWhoIsTold(t *testing.T) {
	for _, c := range []struct {
		name     string
		runs     bool
		node     string // as seen by the caller
		withdraw bool
		want     []string
	}{
		{"cancel of a queued one", false, "", false, []string{"abort 1", "discard 1"}},
		{"cancel of a running one", true, "", false, []string{"abort 1", "n1:4781 1", "discard 1"}},
		{"cancel of one seen to run", true, "n1", false, []string{"abort 1", "n1:4781 1", "discard 1"}},
		{"withdrawal of a queued one", false, "", true, []string{"discard 1"}},
		{"withdrawal of a running one", true, "", true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told []string
			d, records := newDoor(t, func(d *Deps) {
				d.Abort = func(id string) { told = append(told, "abort "+id) }
				d.Direct = func(address, id string) { told = append(told, address+" "+id) }
				d.Discard = func(id string) bool { told = append(told, "discard "+id); return true }
			})
			b := newBid("1")
			if f := d.Enter(t.Context(), b, &Place{}); f != nil {
				t.Fatalf("refused: %+v", f)
			}
			deadline := b.Opened.Add(b.Limits.Deadline)
			if c.runs {
				if s, err := records.Claim(t.Context(), registry.Start{ID: "1", Attempt: "a", Owner: "n1", Lane: b.Lane, Deadline: deadline, Tokens: 10}); err != nil || s.Action != registry.Run {
					t.Fatalf("claim = %+v, %v, want run", s, err)
				}
			}
			gone, leave := context.WithCancel(t.Context())
			leave() // neither needs the client any more
			var err error
			if c.withdraw {
				_, err = d.Withdraw(gone, "1")
			} else {
				_, err = d.Cancel(gone, "1", c.node, deadline)
			}
			if err != nil || !slices.Equal(told, c.want) {
				t.Errorf("told %q, %v; want %q", told, err, c.want)
			}
		})
	}
}
