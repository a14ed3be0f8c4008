package registrytest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

// Longest checks that a store names the lanes with most waiting, and what of them
// runs. width is Width of every lane.
func Longest(t *testing.T, with With, width int) {
	with(t, func(t *testing.T, h Harness) {
		r := &rig{T: t, Harness: h, ctx: t.Context()}
		store, is := h.Records.(interface {
			Longest(ctx context.Context, n int) ([]registry.LaneBacklog, int, error)
		})
		if !is {
			t.Fatalf("%T has no Longest", h.Records)
		}
		// rows reads the n longest; ages are rounded to a second.
		rows := func(step string, n, wantTotal int, want ...registry.LaneBacklog) {
			t.Helper()
			got, total, err := store.Longest(r.ctx, n)
			r.ok(err)
			for i := range got {
				got[i].Oldest = got[i].Oldest.Round(time.Second)
				got[i].Held = got[i].Held && width > 0
			}
			for i := range want {
				want[i].Width = width
				want[i].Held = want[i].Held && width > 0
			}
			if diff := cmp.Diff(want, got); diff != "" || total != wantTotal {
				t.Errorf("%s: %d in all, want %d; (-want +got):\n%s", step, total, wantTotal, diff)
			}
		}
		in := func(tenant string) lane.Key { k := chat; k.Tenant = tenant; return k }
		open := func(id, tenant string) {
			t.Helper()
			if a := r.openAs(registry.Request{ID: id, Lane: in(tenant), Tokens: 100, Bytes: 10}, engines); a.Reason != reason.OK {
				t.Fatalf("open %s: %+v, want ok", id, a)
			}
		}
		rows("nothing", 10, 0)
		open("a1", "a")
		h.Advance(2 * time.Second)
		for i := range 3 {
			open(fmt.Sprint("b", i), "b")
		}
		open("c1", "c\n/\xff") // a tenant may be any bytes
		h.Advance(3 * time.Second)
		open("a2", "a")
		rows("three lanes", 10, 3,
			registry.LaneBacklog{Lane: in("b"), Requests: 3, Tokens: 300, Oldest: 3 * time.Second},
			registry.LaneBacklog{Lane: in("a"), Requests: 2, Tokens: 200, Oldest: 5 * time.Second},
			registry.LaneBacklog{Lane: in("c\n/\xff"), Requests: 1, Tokens: 100, Oldest: 3 * time.Second})
		rows("the longest", 1, 3, registry.LaneBacklog{Lane: in("b"), Requests: 3, Tokens: 300, Oldest: 3 * time.Second})

		r.claimIn(in("a"), "a1", "1", registry.Run, reason.OK)
		r.cancel("c1", true, registry.Queued)
		rows("one runs, one left", 10, 2,
			registry.LaneBacklog{Lane: in("b"), Requests: 3, Tokens: 300, Oldest: 3 * time.Second},
			registry.LaneBacklog{Lane: in("a"), Requests: 1, Tokens: 100, Running: 1})
		r.release("a1", "1", true)
		rows("given back", 1, 2, registry.LaneBacklog{Lane: in("b"), Requests: 3, Tokens: 300, Oldest: 3 * time.Second})
		for i := range 3 {
			r.claimIn(in("b"), fmt.Sprint("b", i), "1", registry.Run, reason.OK)
		}
		rows("given back is as old as it was", 10, 1, registry.LaneBacklog{Lane: in("a"), Requests: 2, Tokens: 200, Oldest: 5 * time.Second})
	})
}
