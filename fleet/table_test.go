package fleet

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/reason"
)

// written is version (incarnation, seq) of an engine's row: one version has one content.
func written(engine, incarnation, seq uint64, at time.Time) Row {
	return Row{
		Engine: engine, Incarnation: incarnation, Seq: seq, Node: fmt.Sprint("n", engine), State: reason.OK,
		Models: Models("m"), Running: int(incarnation*100 + seq), At: at,
	}
}

func (t *Table) mustReceive(tb testing.TB, now time.Time, r Row) {
	tb.Helper()
	if err := t.Receive(now, AppendRow(nil, &r, now)); err != nil {
		tb.Fatal(err)
	}
}

func TestTableKeepsTheNewest(t *testing.T) {
	ago := func(age time.Duration) time.Time { return noon.Add(-age) }
	for _, tt := range []struct {
		name string
		in   []Row
		want []Row
		n    Counts
	}{
		{"two owners", []Row{written(9, 1, 1, noon), written(3, 1, 1, noon)}, []Row{written(3, 1, 1, noon), written(9, 1, 1, noon)}, Counts{Applied: 2}},
		{"a later seq", []Row{written(3, 1, 1, noon), written(3, 1, 2, noon)}, []Row{written(3, 1, 2, noon)}, Counts{Applied: 2}},
		{"an earlier seq", []Row{written(3, 1, 2, noon), written(3, 1, 1, noon)}, []Row{written(3, 1, 2, noon)}, Counts{Applied: 1, Old: 1}},
		{"a restarted owner counts from 1", []Row{written(3, 1, 900, noon), written(3, 2, 1, noon)}, []Row{written(3, 2, 1, noon)}, Counts{Applied: 2}},
		{"an earlier process", []Row{written(3, 2, 1, noon), written(3, 1, 900, noon)}, []Row{written(3, 2, 1, noon)}, Counts{Applied: 1, Old: 1}},
		{"a copy that took longer is no younger", []Row{written(3, 1, 1, ago(time.Second)), written(3, 1, 1, noon)}, []Row{written(3, 1, 1, ago(time.Second))}, Counts{Applied: 1, Old: 1}},
		{"a copy that took less long tells the age", []Row{written(3, 1, 1, noon), written(3, 1, 1, ago(time.Second))}, []Row{written(3, 1, 1, ago(time.Second))}, Counts{Applied: 1, Old: 1}},
		{"gone already", []Row{written(3, 1, 1, ago(GoneAfter))}, nil, Counts{Old: 1}},
		{"nearly gone", []Row{written(3, 1, 1, ago(GoneAfter-time.Millisecond))}, []Row{written(3, 1, 1, ago(GoneAfter-time.Millisecond))}, Counts{Applied: 1}},
		{"an echo of nothing", []Row{written(7, 1, 0, noon)}, nil, Counts{Echo: 1}},
		{"somebody writes our row", []Row{written(7, 99, 1, noon)}, nil, Counts{Rival: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := NewTable(7, 1)
			for _, r := range tt.in {
				table.mustReceive(t, noon, r)
			}
			if diff := cmp.Diff(tt.want, table.Rows(noon)); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if table.Counts != tt.n {
				t.Errorf("counts = %+v, want %+v", table.Counts, tt.n)
			}
		})
	}
}

// TestTableOwn: nobody else writes the own row, and an owner whose clock went back
// between two starts gets past its own past.
func TestTableOwn(t *testing.T) {
	before, other := NewTable(7, 500), NewTable(0, 0)
	for range 3 {
		other.mustReceive(t, noon, before.Own(noon, Row{State: reason.OK, At: noon}))
	}
	restarted := NewTable(7, 400)
	row := restarted.Own(noon, Row{Engine: 1234, State: reason.Draining, At: noon})
	if other.mustReceive(t, noon, row); other.Rows(noon)[0].State != reason.OK {
		t.Fatal("a row of an earlier incarnation replaced a later one's")
	}
	if err := restarted.Merge(noon, other.AppendTable(nil, noon)); err != nil {
		t.Fatal(err)
	}
	if got := restarted.Rows(noon); len(got) != 1 || got[0] != row {
		t.Errorf("the own row is %+v after the others' copy came, want %+v", got, row)
	}
	row = restarted.Own(noon, row)
	other.mustReceive(t, noon, row)
	if got := other.Rows(noon)[0]; got.State != reason.Draining || got.Incarnation != 501 || got.Seq != 2 || got.Engine != 7 {
		t.Errorf("others see %+v, want the restarted owner's row as 501/2", got)
	}
	if err := restarted.Merge(noon, other.AppendTable(nil, noon)); err != nil || restarted.Counts.Rival != 1 || restarted.Counts.Echo != 1 {
		t.Errorf("%v, counts %+v, want one rival and one echo", err, restarted.Counts)
	}
	restarted.mustReceive(t, noon, written(7, math.MaxUint64, math.MaxUint64, noon))
	if next := restarted.Own(noon, row); next.Incarnation != 501 {
		t.Errorf("incarnation %d after the largest there is, want 501", next.Incarnation)
	}
}

func TestTableAges(t *testing.T) {
	a, b := NewTable(0, 0), NewTable(0, 0)
	a.mustReceive(t, noon, written(3, 1, 1, noon))
	later := noon.Add(40 * time.Second)
	elsewhere := later.Add(-time.Hour) // b's clock
	if err := b.Merge(elsewhere, a.AppendTable(nil, later)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		age  time.Duration
		want int
	}{{0, 1}, {19 * time.Second, 1}, {20 * time.Second, 0}} {
		if got := b.Rows(elsewhere.Add(step.age)); len(got) != step.want {
			t.Errorf("%d rows %v after a copy of 40 s came, want %d", len(got), step.age, step.want)
		}
	}
	if got := a.AppendTable(nil, noon.Add(GoneAfter)); len(got) != 2 {
		t.Errorf("a table of gone rows takes %d bytes, want 2", len(got))
	}
	// What is gone does not stand in the way of a process with a lower incarnation.
	a.mustReceive(t, noon.Add(GoneAfter), written(3, 0, 1, noon.Add(GoneAfter)))
	if got := a.Rows(noon.Add(GoneAfter)); len(got) != 1 || got[0].Incarnation != 0 {
		t.Errorf("rows = %+v, want the new one", got)
	}
}

func TestTableIsBounded(t *testing.T) {
	table := NewTable(7, 1)
	for i := range uint64(MaxRows + 5) {
		table.mustReceive(t, noon, written(100+i, 1, 1, noon))
	}
	if got := table.Rows(noon); len(got) != MaxRows || table.Counts.Full != 5 {
		t.Errorf("%d rows, counts %+v; want %d, 5 of them not taken", len(got), table.Counts, MaxRows)
	}
	if n := len(table.AppendTable(nil, noon)); n > 201*MaxRows {
		t.Errorf("a full table takes %d bytes", n)
	}
	own := table.Own(noon, Row{State: reason.OK, At: noon})
	if got := table.Rows(noon); len(got) != MaxRows || got[0] != own {
		t.Errorf("%d rows, first %+v; want the own one among %d", len(got), got[0], MaxRows)
	}
	later := noon.Add(StaleAfter + time.Millisecond)
	table.mustReceive(t, later, written(3, 1, 1, later))
	if got := table.Rows(later); len(got) != MaxRows || got[0].Engine != 3 {
		t.Errorf("a live engine finds no place among rows that do not count")
	}
	if got := table.Rows(noon.Add(GoneAfter)); len(got) != 1 {
		t.Errorf("%d rows a minute later, want 1", len(got))
	}
}

// TestMergeGarbage: what can be read of a table is taken, what cannot is counted.
func TestMergeGarbage(t *testing.T) {
	row := func(engine uint64) []byte {
		r := written(engine, 1, 1, noon)
		b := AppendRow([]byte{0}, &r, noon)
		b[0] = byte(len(b) - 1)
		return b
	}
	next := row(3)
	next[2] = rowVersion + 1
	broken := row(4)
	broken[31] = 0
	join := func(parts ...[]byte) (b []byte) {
		for _, part := range parts {
			b = append(b, part...)
		}
		return b
	}
	head := []byte{KindTable, tableVersion}
	for _, tt := range []struct {
		name string
		b    []byte
		want error
		rows int
		n    Counts
	}{
		{"nothing", nil, ErrMalformed, 0, Counts{Malformed: 1}},
		{"a row", row(1)[1:], ErrMalformed, 0, Counts{Malformed: 1}},
		{"the next version", []byte{KindTable, tableVersion + 1, 1}, ErrVersion, 0, Counts{Version: 1}},
		{"no rows", head, nil, 0, Counts{}},
		{"a row of the next version", join(head, row(1), next, row(2)), ErrVersion, 2, Counts{Applied: 2, Version: 1}},
		{"a broken row", join(head, row(1), broken, next, row(2)), ErrMalformed, 2, Counts{Applied: 2, Malformed: 1, Version: 1}},
		{"cut off", join(head, row(1), row(2)[:30]), ErrMalformed, 1, Counts{Applied: 1, Malformed: 1}},
		{"an empty row", join(head, []byte{0}, row(1)), ErrMalformed, 1, Counts{Applied: 1, Malformed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := NewTable(0, 0)
			if err := table.Merge(noon, tt.b); !errors.Is(err, tt.want) {
				t.Errorf("Merge = %v, want %v", err, tt.want)
			}
			if rows := table.Rows(noon); len(rows) != tt.rows || table.Counts != tt.n {
				t.Errorf("%d rows, counts %+v; want %d, %+v", len(rows), table.Counts, tt.rows, tt.n)
			}
		})
	}
}

func FuzzMerge(f *testing.F) {
	table := NewTable(7, 1)
	table.Own(noon, full())
	table.put(noon, ptr(written(3, 1, 1, noon)))
	f.Add(table.AppendTable(nil, noon))
	f.Fuzz(func(t *testing.T, b []byte) {
		table := NewTable(7, 1)
		own := table.Own(noon, full())
		_ = table.Merge(noon, b)
		rows := table.Rows(noon)
		again := NewTable(0, 0)
		if err := again.Merge(noon, table.AppendTable(nil, noon)); err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			if rows[i].Engine == own.Engine {
				if rows[i] != own {
					t.Errorf("the own row became %+v", rows[i])
				}
				rows[i].At = again.Rows(noon)[i].At // cut to whole milliseconds
			}
		}
		if diff := cmp.Diff(rows, again.Rows(noon)); diff != "" {
			t.Errorf("what was merged is not what is sent on (-want +got):\n%s", diff)
		}
	})
}

// TestMergeLaws: tables may come in any order, any grouping and any number.
func TestMergeLaws(t *testing.T) {
	table := rapid.Custom(func(t *rapid.T) []byte {
		table := NewTable(0, 0)
		for range rapid.IntRange(0, 12).Draw(t, "rows") {
			table.put(noon, ptr(written(
				rapid.Uint64Range(1, 4).Draw(t, "engine"), rapid.Uint64Range(0, 2).Draw(t, "incarnation"), rapid.Uint64Range(1, 3).Draw(t, "seq"),
				noon.Add(-time.Duration(rapid.IntRange(0, 70_000).Draw(t, "age"))*time.Millisecond))))
		}
		return table.AppendTable(nil, noon)
	})
	merged := func(tables ...[]byte) *Table {
		t := NewTable(0, 0)
		for _, b := range tables {
			if err := t.Merge(noon, b); err != nil {
				panic(err)
			}
		}
		return t
	}
	same := func(t *rapid.T, law string, a, b *Table) {
		if diff := cmp.Diff(a.Rows(noon), b.Rows(noon)); diff != "" {
			t.Fatalf("merging is not %s:\n%s", law, diff)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := table.Draw(t, "a"), table.Draw(t, "b"), table.Draw(t, "c")
		same(t, "commutative", merged(a, b), merged(b, a))
		same(t, "associative", merged(merged(a, b).AppendTable(nil, noon), c), merged(a, merged(b, c).AppendTable(nil, noon)))
		same(t, "idempotent", merged(a, b), merged(a, b, b, a))
	})
}
