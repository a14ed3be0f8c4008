package admission

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/gateway/openai"
	"penstock/queue"
	"penstock/quota"
	"penstock/reason"
)

// TestEnter: what is published of a bid, and what is known of its place.
func TestEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var published *queue.Message
		d, _ := newDoor(t, func(d *Deps) {
			d.Publish = func(_ context.Context, m *queue.Message) error { published = m; return nil }
		})
		b := newBid("1")
		at := Place{Ahead: 7}
		if f := d.Enter(t.Context(), b, &at); f != nil {
			t.Fatalf("refused: %+v", f)
		}
		if diff := cmp.Diff(Place{Known: true, Opened: true}, at); diff != "" {
			t.Errorf("place (-want +got)\n%s", diff)
		}
		want := &queue.Message{
			Version: queue.Version, ID: "1", Lane: b.Lane, Path: b.Path, Opened: b.Opened, Deadline: b.Opened.Add(30 * time.Second),
			SLOTTFT: 2 * time.Second, SLOTPOT: 100 * time.Millisecond, PromptTokens: 100, ExpectedOut: 8, MaxTokens: 8, Sequences: 1,
			Reply: "mailbox 1", Body: b.Request.Body,
		}
		if diff := cmp.Diff(want, published); diff != "" {
			t.Errorf("message (-want +got)\n%s", diff)
		}
	})
}

// TestRefusedBids: what a refused bid leaves of its place.
func TestRefusedBids(t *testing.T) {
	full := []quota.Limit{{Unit: quota.Requests, Scope: quota.Tenant, Bucket: "acme", Amount: 1, Per: time.Minute}}
	for _, c := range []struct {
		name   string
		change func(b *Bid)
		why    reason.Reason
		known  bool
		quota  bool // the verdict is there to be shown
	}{
		{"a model nobody serves", func(b *Bid) { b.Request.Model = "other" }, reason.UnknownModel, false, false},
		{"a filter of a model nobody serves", func(b *Bid) { b.Question = &openai.Request{Model: "other", Sequences: 1} }, reason.NoEngine, false, false},
		{"a pool without engines", func(b *Bid) { b.Lane.Pool = "h200" }, reason.NoEngine, false, false},
		{"a client that will not wait for the answer", func(b *Bid) { b.Limits.Patience = time.Millisecond }, reason.DeadlinePassed, true, false},
		{"nothing left of its deadline", func(b *Bid) { b.Left, b.Opened = true, time.Now().Add(-time.Minute) }, reason.DeadlinePassed, true, false},
		{"a limit", func(b *Bid) { b.Quota = full }, reason.RateLimited, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDoor(t, nil)
				if c.quota {
					first := newBid("0")
					first.Quota = full
					if f := d.Enter(t.Context(), first, &Place{}); f != nil {
						t.Fatalf("the first is refused: %+v", f)
					}
				}
				b, at := newBid("1"), Place{}
				c.change(b)
				f := d.Enter(t.Context(), b, &at)
				if f == nil || f.Reason != c.why {
					t.Fatalf("got %+v, want %s", f, c.why)
				}
				if shown := at.Quota.Refused; at.Opened || at.Known != c.known || shown != c.quota {
					t.Errorf("place %+v, want known %v, a verdict %v, not opened", at, c.known, c.quota)
				}
			})
		})
	}
}
