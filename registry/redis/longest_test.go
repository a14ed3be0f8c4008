package redis

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"penstock/reason"
	"penstock/registry"
	"penstock/registry/redis/script"
	"penstock/registry/registrytest"
)

func TestLongest(t *testing.T) { registrytest.Longest(t, on(fake), DefaultConfig().Width) }

// TestLongestBesideTheVersionBefore: a process that does not know the set of depths has
// emptied one lane and opened another.
func TestLongestBesideTheVersionBefore(t *testing.T) {
	t.Parallel()
	s, ctx := fake(t), context.Background()
	r := dial(t, s, testConfig(s))
	openOne(t, mailboxesOf(r, s), "1", chat)
	id, _, err := script.Lane(chat)
	if err != nil {
		t.Fatal(err)
	}
	s.raw.ZAdd(ctx, prefix+"lanes:depth", redis.Z{Score: 9, Member: "gone"})
	s.raw.ZRem(ctx, prefix+"waits:"+id, "1")
	longest, waiting, err := r.Longest(ctx, 10)
	if err != nil || waiting != 1 || len(longest) != 1 || longest[0].Lane != chat || longest[0].Oldest != 0 {
		t.Errorf("got %+v, %d, %v; want the lane that has work, its age not known", longest, waiting, err)
	}
	if n := s.raw.ZCard(ctx, prefix+"lanes:depth").Val(); n != 1 {
		t.Errorf("%d lanes have a depth, want 1", n)
	}
}

// TestHeld: a lane whose every shard in use runs one has nothing to give to a free engine.
func TestHeld(t *testing.T) {
	t.Parallel()
	s, ctx := fake(t), context.Background()
	cfg := testConfig(s)
	cfg.Width = 2
	r := dial(t, s, cfg)
	box := mailboxesOf(r, s)
	for _, id := range []string{"1", "2", "3"} { // on shards 0, 1 and 0
		openOne(t, box, id, chat)
	}
	for _, step := range []struct {
		id   string
		held bool
	}{{"1", false}, {"2", true}} { // after 1, 2 waits alone on shard 1
		if c, err := r.Claim(ctx, start(step.id, "a", chat)); err != nil || c.Reason != reason.OK {
			t.Fatalf("claim %s: %+v, %v", step.id, c, err)
		}
		want := registry.LaneBacklog{Held: step.held, Width: 2}
		if longest, _, err := r.Longest(ctx, 1); err != nil || len(longest) != 1 || longest[0].Held != want.Held || longest[0].Width != want.Width {
			t.Errorf("%s runs: got %+v, %v; want held %v, width 2", step.id, longest, err, step.held)
		}
	}
}
