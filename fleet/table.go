package fleet

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// MaxRows is how many rows a table holds, enough for 100 engines that all restart
// under new names every 6 s. At 240 bytes each that is 240 kB.
const MaxRows = 1000

// Counts is what came in, since the table was made.
type Counts struct {
	Applied   uint64 // rows newer than what was known
	Old       uint64 // rows no newer than what was known, or gone already
	Echo      uint64 // copies of the own row
	Rival     uint64 // rows of the own engine that the table did not write: an earlier process, or two with one name
	Full      uint64 // rows pushed out or not taken because the table was full
	Version   uint64 // rows and tables of a version not known
	Malformed uint64
}

// Table keeps the newest row of every owner. Merging is commutative, associative
// and idempotent while the table is not full. All its calls are for one goroutine
// at a time.
type Table struct {
	Counts Counts

	self        uint64
	incarnation uint64
	seq         uint64
	rows        []Row // sorted by Engine
}

// NewTable makes the table of the process that owns the engine self, or of one that
// owns none: 0. incarnation is higher than any that an earlier process of this
// owner used, such as its start in Unix milliseconds; where a clock went back, the
// table goes past what it hears of itself.
func NewTable(self, incarnation uint64) *Table { return &Table{self: self, incarnation: incarnation} }

// Own stamps the owner's row with the next version, keeps it and returns it, to be
// sent. The engine is the table's own, whatever r says.
func (t *Table) Own(now time.Time, r Row) Row {
	t.seq++
	r.Engine, r.Incarnation, r.Seq = t.self, t.incarnation, t.seq
	i, found := t.find(r.Engine)
	if found {
		t.rows[i] = r
	} else if t.room(now, &r) {
		t.insert(r)
	}
	return r
}

// Receive takes one encoded row. It keeps nothing of b.
func (t *Table) Receive(now time.Time, b []byte) error {
	r, err := ParseRow(b, now)
	if err != nil {
		return t.bad(err)
	}
	t.put(now, &r)
	return nil
}

// Merge takes a whole table of another process. Rows that cannot be read are left
// out, the others are taken; the error is the first one's.
func (t *Table) Merge(now time.Time, b []byte) error {
	if len(b) < 2 || b[0] != KindTable {
		return t.bad(ErrMalformed)
	}
	if b[1] < oldestTable || b[1] > tableVersion {
		return t.bad(ErrVersion)
	}
	var first error
	for b = b[2:]; len(b) > 0; {
		n := 1 + int(b[0])
		if n > len(b) {
			return cmp.Or(first, t.bad(ErrMalformed))
		}
		first = cmp.Or(first, t.Receive(now, b[1:n]))
		b = b[n:]
	}
	return first
}

// AppendTable appends every row that is not gone, with its age at now.
func (t *Table) AppendTable(dst []byte, now time.Time) []byte {
	dst = append(dst, KindTable, tableVersion)
	for i := range t.rows {
		if gone(&t.rows[i], now) {
			continue
		}
		at := len(dst)
		dst = AppendRow(append(dst, 0), &t.rows[i], now)
		dst[at] = byte(len(dst) - at - 1)
	}
	return dst
}

// Rows returns a copy of all rows that are not gone, by engine, and forgets the
// others. The own row is one of them.
func (t *Table) Rows(now time.Time) []Row {
	t.forget(now)
	return slices.Clone(t.rows)
}

func (t *Table) bad(err error) error {
	if errors.Is(err, ErrVersion) {
		t.Counts.Version++
	} else {
		t.Counts.Malformed++
	}
	return err
}

// put keeps the last version of every owner. Of two copies of one version, the one
// that took the shorter way tells the age better.
func (t *Table) put(now time.Time, r *Row) {
	if r.Engine == t.self {
		t.heard(r)
		return
	}
	if gone(r, now) {
		t.Counts.Old++
		return
	}
	i, found := t.find(r.Engine)
	if !found {
		if t.room(now, r) {
			t.insert(*r)
			t.Counts.Applied++
		}
		return
	}
	have := &t.rows[i]
	switch order := version(r, have); {
	case order > 0 || gone(have, now):
		*have = *r
		t.Counts.Applied++
	default:
		if order == 0 && r.At.Before(have.At) {
			have.At = r.At
		}
		t.Counts.Old++
	}
}

// heard is a row about the own engine: nobody else writes it. A version above the
// own one would make everybody ignore the own rows until it is gone, so the next
// own row goes past it.
func (t *Table) heard(r *Row) {
	if version(r, &Row{Incarnation: t.incarnation, Seq: t.seq}) <= 0 {
		t.Counts.Echo++
		return
	}
	t.Counts.Rival++
	t.incarnation = max(t.incarnation, r.Incarnation+1) // past the largest number there is nothing to do but wait
}

func version(a, b *Row) int {
	return cmp.Or(cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Seq, b.Seq))
}

func gone(r *Row, now time.Time) bool { return now.Sub(r.At) >= GoneAfter }

func (t *Table) forget(now time.Time) {
	t.rows = slices.DeleteFunc(t.rows, func(r Row) bool { return gone(&r, now) })
}

func (t *Table) find(engine uint64) (int, bool) {
	return slices.BinarySearchFunc(t.rows, engine, func(r Row, engine uint64) int { return cmp.Compare(r.Engine, engine) })
}

func (t *Table) insert(r Row) {
	i, _ := t.find(r.Engine)
	t.rows = slices.Insert(t.rows, i, r)
}

// room makes place for a new owner's row. In a full table the oldest row goes if it
// does not count any more, so that nothing pushes out live engines; the own row
// always has a place.
func (t *Table) room(now time.Time, r *Row) bool {
	if len(t.rows) < MaxRows {
		return true
	}
	if t.forget(now); len(t.rows) < MaxRows {
		return true
	}
	t.Counts.Full++
	oldest := 0
	for i := range t.rows {
		if t.rows[i].At.Before(t.rows[oldest].At) {
			oldest = i
		}
	}
	if r.Engine != t.self && now.Sub(t.rows[oldest].At) <= StaleAfter {
		return false
	}
	t.rows = slices.Delete(t.rows, oldest, oldest+1)
	return true
}
