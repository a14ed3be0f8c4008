package registrytest

import (
	"context"
	"testing"
	"time"

	"penstock/reason"
	"penstock/registry"
)

// Lookup checks that a store shows a record as it is at every step of its life.
func Lookup(t *testing.T, with With) {
	with(t, func(t *testing.T, h Harness) {
		r := &rig{T: t, Harness: h, ctx: t.Context()}
		store, is := h.Records.(interface {
			Lookup(ctx context.Context, id string) (registry.Record, error)
		})
		if !is {
			t.Fatalf("%T has no Lookup", h.Records)
		}
		want := registry.Record{}
		look := func(step string) {
			t.Helper()
			got, err := store.Lookup(r.ctx, "x")
			r.ok(err)
			for _, at := range []*time.Time{&got.Opened, &got.Deadline} {
				if want.State != registry.Unknown && (at.Sub(want.Opened) < -time.Second || at.Sub(want.Opened) > 31*time.Second) {
					t.Errorf("%s: times %v and %v, want about %v", step, got.Opened, got.Deadline, want.Opened)
				}
			}
			got.Opened, got.Deadline = want.Opened, want.Deadline
			if got != want {
				t.Errorf("%s: got %+v, want %+v", step, got, want)
			}
		}
		look("before open")
		r.open("x")
		want = registry.Record{State: registry.Queued, Tier: chat.Tier, Model: chat.Model, Opened: r.Now()}
		look("open")
		r.run("x", "1")
		want.State, want.Owner, want.Attempt, want.Tries = registry.Running, "o1", "1", 1
		look("claim")
		r.first("x", "1", true)
		want.State = registry.Streaming
		look("first")
		r.cancel("x", false, registry.Streaming)
		want.Canceled = true
		look("cancel")
		r.finish("x", "1", true)
		want.State = registry.Finished
		look("finish")

		r.claimIn(chat, "lost", "9", registry.Run, reason.OK)
		got, err := store.Lookup(r.ctx, "lost")
		r.ok(err)
		if got.State != registry.Running || got.Owner != "o9" {
			t.Errorf("a claim without open: got %+v, want it running by o9", got)
		}
	})
}
