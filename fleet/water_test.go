package fleet

import (
	"fmt"
	"math"
	"testing"
	"time"

	"penstock/reason"
)

func TestLevel(t *testing.T) {
	now := time.Unix(1000, 0)
	row := func(kv float64, waiting int, state reason.Reason, age time.Duration) Row {
		return Row{Models: Models("m"), KV: kv, Waiting: waiting, State: state, At: now.Add(-age)}
	}
	fresh := func(kv float64, waiting int) Row { return row(kv, waiting, reason.OK, 0) }
	for _, tt := range []struct {
		name string
		rows []Row
		want Water
	}{
		{"no row", nil, Water{Refuse: 0.5}},
		{"another model", []Row{{Models: Models("x"), State: reason.OK, At: now}}, Water{Refuse: 0.5}},
		{"a second old counts", []Row{row(0.95, 0, reason.OK, time.Second)}, Water{1, 0.95, 0, 1}},
		{"older rows do not", []Row{row(0.95, 0, reason.OK, time.Second+1), fresh(0.2, 0)}, Water{1, 0.2, 0, 0}},
		{"only older rows", []Row{row(0.1, 0, reason.OK, 2*time.Second)}, Water{Refuse: 0.5}},
		{"a stuck engine does not", []Row{row(0.1, 0, reason.Stuck, 0), fresh(0.95, 0)}, Water{1, 0.95, 0, 1}},
		{"stale samples do", []Row{row(0.95, 0, reason.Stale, 0)}, Water{1, 0.95, 0, 1}},
		{"below the low mark", []Row{fresh(0.799, 0)}, Water{1, 0.799, 0, 0}},
		{"at the low mark a tenth", []Row{fresh(0.80, 0)}, Water{1, 0.80, 0, 0.1}},
		{"a tenth is the least", []Row{fresh(0.81, 0)}, Water{1, 0.81, 0, 0.1}},
		{"half way half", []Row{fresh(0.86, 0)}, Water{1, 0.86, 0, 0.5}},
		{"the mean", []Row{fresh(0.95, 0), fresh(0.83, 0)}, Water{2, 0.89, 0, 0.75}},
		{"under the high mark", []Row{fresh(0.919, 0)}, Water{1, 0.919, 0, 0.119 / 0.12}},
		{"at the high mark all", []Row{fresh(0.92, 0)}, Water{1, 0.92, 0, 1}},
		{"20 waiting each", []Row{fresh(0.5, 40), fresh(0.5, 0)}, Water{2, 0.5, 40, 0}},
		{"more than 20 each", []Row{fresh(0.5, 41), fresh(0.5, 0)}, Water{2, 0.5, 41, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Level(tt.rows, "m", now)
			near := math.Abs(got.KV-tt.want.KV) < 1e-9 && math.Abs(got.Refuse-tt.want.Refuse) < 1e-9
			if !near || got.Engines != tt.want.Engines || got.Waiting != tt.want.Waiting {
				t.Errorf("Level = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	second := time.Unix(1000, 0)
	for _, p := range []float64{0, 0.1, 0.5, 0.75, 1} {
		w, refused, changed := Water{Refuse: p}, 0, 0
		const n = 10_000
		for i := range n {
			id := fmt.Sprint("request-", i)
			first := w.Refuses(id, second)
			if first {
				refused++
			}
			if first != w.Refuses(id, second.Add(999*time.Millisecond)) {
				t.Fatalf("%s is drawn twice within one second", id)
			}
			if first != w.Refuses(id, second.Add(time.Second)) {
				changed++
			}
		}
		if share := float64(refused) / n; math.Abs(share-p) > 0.015 {
			t.Errorf("Refuse %v: %v of the ids are refused", p, share)
		}
		if share := float64(changed) / n; math.Abs(share-2*p*(1-p)) > 0.02 {
			t.Errorf("Refuse %v: %v of the ids are drawn otherwise a second later, want %v", p, share, 2*p*(1-p))
		}
	}
}

func BenchmarkLevel(b *testing.B) {
	rows := make([]Row, 100)
	now := time.Unix(1000, 0)
	for i := range rows {
		rows[i] = Row{Models: Models("m"), State: reason.OK, KV: 0.85, At: now}
	}
	b.ReportAllocs()
	for b.Loop() {
		Level(rows, "m", now).Refuses("0123456789abcdef0123456789abcdef", now)
	}
}
