package fleet

import (
	"testing"
	"time"

	"penstock/reason"
)

func TestDrain(t *testing.T) {
	now := time.Unix(1000, 0)
	row := func(state reason.Reason, rate float64, first, age time.Duration) Row {
		return Row{Models: Models("m"), State: state, DrainRate: rate, FirstToken: first, At: now.Add(-age)}
	}
	for _, tt := range []struct {
		name    string
		rows    []Row
		engines int
		rate    float64
		first   time.Duration
		known   bool
	}{
		{"none", nil, 0, 0, 0, false},
		{"one", []Row{row(reason.OK, 100, time.Second, 0)}, 1, 100, time.Second, true},
		{"stale samples still take work", []Row{row(reason.Stale, 100, time.Second, 0)}, 1, 100, time.Second, true},
		{"an old row does not count", []Row{row(reason.OK, 100, 0, 2*time.Second)}, 0, 0, 0, false},
		{"a stuck engine is known and takes nothing", []Row{row(reason.Stuck, 100, 0, 0)}, 0, 0, 0, true},
		{"unknown rate counts as the mean of the others", []Row{row(reason.OK, 100, 2*time.Second, 0), row(reason.OK, 300, time.Second, 0), row(reason.OK, 0, 3*time.Second, 0)}, 3, 600, time.Second, true},
		{"another model", []Row{{Models: Models("x"), State: reason.OK, DrainRate: 5, At: now}}, 0, 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			engines, rate, first := Drain(tt.rows, "m", now)
			if engines != tt.engines || rate != tt.rate || first != tt.first {
				t.Errorf("Drain = %d, %v, %v; want %d, %v, %v", engines, rate, first, tt.engines, tt.rate, tt.first)
			}
			if known := Known(tt.rows, "m", now); known != tt.known {
				t.Errorf("Known = %v, want %v", known, tt.known)
			}
		})
	}
}

func TestRelief(t *testing.T) {
	rows := []Row{
		{Engine: 1, Models: Models("m"), State: reason.OK, At: noon, Relief: 2},
		{Engine: 2, Models: Models("m", "n"), State: reason.Stale, At: noon, Relief: 4},
		{Engine: 3, Models: Models("m"), State: reason.Blind, At: noon, Relief: 8},
		{Engine: 4, Models: Models("m"), State: reason.OK, At: noon.Add(-2 * time.Second), Relief: 16},
	}
	for model, want := range map[string]uint16{"m": 6, "n": 4, "other": 0} {
		if got := Relief(rows, model, noon); got != want {
			t.Errorf("relief for %s: %b, want %b: of engines that serve it now", model, got, want)
		}
	}
}
