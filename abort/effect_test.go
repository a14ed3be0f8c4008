package abort

import (
	"testing"
	"time"
)

// TestEffect: the gauges show that an aborted request has left the engine.
func TestEffect(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	type sample struct{ ms, load int }
	for _, tc := range []struct {
		name    string
		closed  []int
		before  int
		samples []sample
		here    int
		want    int
	}{
		{"gauge falls", []int{10}, 9, []sample{{50, 8}}, 2, 1},
		{"gauge stays", []int{10}, 9, []sample{{50, 9}, {100, 9}}, 2, 0},
		{"fell before the close", []int{60}, 9, []sample{{50, 8}}, 2, 0},
		{"more fall than closed", []int{10, 20}, 9, []sample{{50, 3}}, 2, 2},
		{"no more than run here", []int{10, 20, 30}, 2, []sample{{50, 2}}, 2, 3},
		{"too late", []int{10}, 9, []sample{{20_000, 8}}, 2, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var e Effect
			for _, ms := range tc.closed {
				e.Closed(at(ms))
			}
			got, before := 0, tc.before
			for _, s := range tc.samples {
				got += e.Observe(at(s.ms), before, s.load, tc.here)
				before = s.load
			}
			if got != tc.want {
				t.Errorf("freed: got %d, want %d", got, tc.want)
			}
		})
	}
	var e Effect
	for i := range 2 * watched {
		e.Closed(at(i))
	}
	if len(e.closed) != watched {
		t.Errorf("watched: got %d, want the bound %d", len(e.closed), watched)
	}
}
