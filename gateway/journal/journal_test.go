package journal

import (
	"fmt"
	"testing"
	"time"

	"penstock/reason"
)

// TestJournalIsBounded: what is refused at the door does not push out what failed.
func TestJournalIsBounded(t *testing.T) {
	now := time.Now()
	j := New()
	for i := range 3 {
		j.Add(&Entry{ID: fmt.Sprint("failed", i), Reason: reason.UpstreamLost, At: now}, true, false)
	}
	j.Add(&Entry{Reason: reason.NoEngine}, false, false)
	for i := range 250 {
		j.Add(&Entry{ID: fmt.Sprint("refused", i), Reason: reason.Overloaded, Ahead: i, At: now}, false, false)
	}
	j.Add(&Entry{ID: "moved", Route: "a why, b", Outcome: "ok"}, true, true)
	reasons, refused, failed, routed := j.Show(now.Add(time.Second))
	if len(refused) != Kept || refused[0].ID != "refused249" || refused[Kept-1].ID != "refused150" || refused[0].Age != 1 {
		t.Errorf("refused: %d from %+v to %+v, want the last %d, newest first", len(refused), refused[0], refused[len(refused)-1], Kept)
	}
	if len(failed) != 3 || failed[0].ID != "failed2" || failed[2].ID != "failed0" {
		t.Errorf("failed: %+v, want all three, newest first", failed)
	}
	if len(reasons) != 3 || reasons[0].Count != 250 || reasons[0].Last.Ahead != 249 || reasons[1].Last.ID != "failed2" || reasons[2].Reason != reason.NoEngine {
		t.Errorf("by reason: %+v, want 250 for load, the last with 249 ahead, 3 lost and 1 without an engine", reasons)
	}
	if len(routed) != 1 || routed[0].ID != "moved" {
		t.Errorf("routed: %+v, want the one that went through two lanes, which failed nowhere", routed)
	}
	f := Entry{Reason: reason.Overloaded}
	if n := testing.AllocsPerRun(100, func() { j.Add(&f, false, false) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
