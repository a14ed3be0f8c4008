package directory

import (
	"context"
	"sync"
	"testing"
	"time"

	"penstock/fleet"
	"penstock/reason"
	"penstock/registry"
)

type slowDirectory struct {
	registry.Directory
	calls int
}

func (d *slowDirectory) Engines(context.Context) ([]registry.Engine, error) {
	d.calls++ // one at a time
	time.Sleep(10 * time.Millisecond)
	return []registry.Engine{{Models: []string{"q"}, Seen: time.Now()}}, nil
}

// After a pause everybody waits for the one new reading: the engines of the old one
// would all count as gone.
func TestReadAfterPause(t *testing.T) {
	from := &slowDirectory{}
	d := New(from, nil, nil)
	d.last.Store(&Reading{At: time.Now().Add(-11 * time.Second)})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			r, err := d.Read(t.Context(), Fresh)
			if err != nil || time.Since(r.At) > busy {
				t.Errorf("a reading of %v ago, %v", time.Since(r.At), err)
			}
		})
	}
	all.Wait()
	if from.calls != 1 {
		t.Errorf("%d calls, want 1 for all", from.calls)
	}
}

func TestDrainRate(t *testing.T) {
	now := time.Now()
	row := func(rate float64, age time.Duration) fleet.Row {
		return fleet.Row{Models: fleet.Models("q"), State: reason.OK, DrainRate: rate, FirstToken: 80 * time.Millisecond, At: now.Add(-age)}
	}
	alive := registry.Engine{Models: []string{"q"}, State: reason.OK, Seen: now}
	asleep := registry.Engine{Models: []string{"q"}, State: reason.Asleep, Seen: now}
	gone := registry.Engine{Models: []string{"q"}, State: reason.OK, Seen: now.Add(-11 * time.Second)}
	for _, c := range []struct {
		name  string
		rows  []fleet.Row
		known []registry.Engine
		last  rate
		want  registry.Drain
		first time.Duration
	}{
		{"rows", []fleet.Row{row(100, 0), row(300, 0)}, nil, rate{}, registry.Drain{Engines: 2, Rate: 400}, 80 * time.Millisecond},
		{"rows without a rate yet", []fleet.Row{row(0, 0)}, nil, rate{now.Add(-20 * time.Second), 50, 0}, registry.Drain{Engines: 1, Rate: 50}, 80 * time.Millisecond},
		{"no fresh row: the last rate", []fleet.Row{row(100, 2*time.Second)}, []registry.Engine{alive, asleep, gone}, rate{now.Add(-20 * time.Second), 50, time.Second}, registry.Drain{Engines: 1, Rate: 50}, time.Second},
		{"the last rate is too old", nil, []registry.Engine{alive}, rate{now.Add(-31 * time.Second), 50, time.Second}, registry.Drain{Engines: 1}, 0},
		{"nobody", nil, []registry.Engine{asleep, gone}, rate{now, 50, time.Second}, registry.Drain{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Directory{rows: func() []fleet.Row { return c.rows }, rates: map[string]rate{"q": c.last}}
			if got, first := d.Drain("q", "", c.known, now); got != c.want || first != c.first {
				t.Errorf("drain = %+v, %s, want %+v, %s", got, first, c.want, c.first)
			}
		})
	}
}

// TestPool: engines of other classes count neither as known nor for the predicted
// start.
func TestPool(t *testing.T) {
	now := time.Now()
	d := Directory{rates: map[string]rate{}, rows: func() []fleet.Row {
		return []fleet.Row{
			{Node: "a", Models: fleet.Models("q"), Pool: "a100", State: reason.OK, DrainRate: 100, At: now},
			{Node: "b", Models: fleet.Models("q"), Pool: "h200", State: reason.OK, DrainRate: 1000, At: now},
		}
	}}
	for pool, want := range map[string]registry.Drain{"": {Engines: 2, Rate: 1100}, "h200": {Engines: 1, Rate: 1000}, "v100": {}} {
		if got, _ := d.Drain("q", pool, nil, now); got != want {
			t.Errorf("pool %q: %+v, want %+v", pool, got, want)
		}
	}
}
