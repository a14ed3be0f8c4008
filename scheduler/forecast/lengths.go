// Package forecast predicts what requests that run will hold and how long an engine's
// steps will take, from what they did before. It is pure, and not safe for concurrent
// use; nothing in it allocates once its tables are made.
package forecast

import "math/bits"

const (
	mostTables = 128  // classes and models together; 1 KiB each
	memory     = 2048 // sequences remembered per step of a length, by exponential forgetting
	modelWorth = 8    // sequences of a class that count as much as all of its model's
	guessWorth = 2    // sequences of a model that count as much as what the gateway expects
	enough     = 50   // ends from which on lengths are known
	steps      = 64   // of a table, each about a fifth wider than the one before, to 440,000 tokens
	unknownEnd = 0.2  // at most so many of those that reach a step end in it, where nobody is known to have reached it: far more than they have may be to come
)

// Lengths is how long answers become, per class and per model, by hash. A hash of 0 is
// not known and teaches nothing.
type Lengths struct {
	of   map[uint64]int // place in all
	all  []Table
	tick uint64
	ends int
}

// Table is a life table of answers: of those that came as far as a step of lengths, how
// many ended in it. Answers that run still, were cut off or reached their limit count for
// the steps they have passed (Kaplan and Meier 1958): otherwise the short ones, which end
// first, are all that is known of a class for as long as its long ones take.
type Table struct {
	hash     uint64
	used     uint64
	stale    bool    // reach is to be computed anew
	expected float64 // what the gateway expects, lately: holds where nothing is known
	came     [steps]float32
	ended    [steps]float32
	reach    [steps + 1]float64 // share that comes as far as a step begins
}

// NewLengths makes one that knows nothing.
func NewLengths() Lengths {
	return Lengths{of: make(map[uint64]int, mostTables), all: make([]Table, 0, mostTables)}
}

// Known reports whether enough answers have ended to go by. A caller that names no
// classes cannot teach, and is taken at its word.
func (l *Lengths) Known() bool { return l.ends >= enough || l.tick == 0 }

// Step is the step of a table that a length is in.
func Step(n int) int {
	if n < 8 {
		return 0
	}
	e := bits.Len(uint(n)) - 1
	return min(1+(e-3)*4+(n>>(e-2))&3, steps-1)
}

// begins is the least length of a step. Each is as wide as a power of 2.
func begins(k int) int {
	if k == 0 {
		return 0
	}
	return (4 + (k-1)%4) << ((k-1)/4 + 1)
}

// bounds are where each step begins, and one over how wide it is.
var bounds = func() (all [steps + 1]bound) {
	for k := range all {
		all[k] = bound{begins(k), 1 / float64(begins(k+1)-begins(k))}
	}
	return all
}()

type bound struct {
	begin int
	per   float64
}

// Learn takes in that so many sequences passed the steps from one to another, and, if
// so, that they ended there by themselves.
func (l *Lengths) Learn(class, model uint64, from, to, sequences int, ended bool) {
	if ended {
		l.ends = min(l.ends+sequences, enough)
	}
	n := float32(min(sequences, memory))
	for _, hash := range [2]uint64{class, model} {
		i, ok := l.of[hash]
		if !ok {
			continue // unknown, or its table had to make room
		}
		t := &l.all[i]
		t.stale = true
		for k := from; k < to; k++ {
			t.add(k, n, 0)
		}
		if ended {
			t.add(to, n, n)
		}
	}
}

func (t *Table) add(k int, came, ended float32) {
	keep := 1 - came/memory
	t.came[k] = keep*t.came[k] + came
	t.ended[k] = keep*t.ended[k] + ended
}

// Table is the one to go by, for a request of which the gateway expects so many tokens:
// its class's, which leans on its model's where it knows little; nil for a request
// without either. It is good until the next call.
func (l *Lengths) Table(class, model uint64, expected int) *Table {
	m := l.table(model, expected)
	if m != nil {
		m.derive(nil)
	}
	c := l.table(class, expected)
	if c == nil {
		return m
	}
	c.derive(m)
	return c
}

// table finds or makes the one of a hash; once all are taken, in the place of that unused
// for longest.
func (l *Lengths) table(hash uint64, expected int) *Table {
	if hash == 0 {
		return nil
	}
	i, ok := l.of[hash]
	if !ok {
		if i = len(l.all); i < mostTables {
			l.all = append(l.all, Table{})
		} else {
			i = l.oldest()
			delete(l.of, l.all[i].hash)
		}
		l.all[i] = Table{hash: hash, stale: true, expected: float64(expected)}
		l.of[hash] = i
	}
	t := &l.all[i]
	l.tick++
	t.used = l.tick
	t.expected += 0.05 * (float64(expected) - t.expected)
	return t
}

func (l *Lengths) oldest() (oldest int) {
	for i := range l.all {
		if l.all[i].used < l.all[oldest].used {
			oldest = i
		}
	}
	return oldest
}

// derive computes how many come how far.
func (t *Table) derive(model *Table) {
	if !t.stale {
		return
	}
	t.stale = false
	t.reach[0] = 1
	for k := range steps {
		end, worth := min(float64(bounds[k+1].begin-bounds[k].begin)/max(t.expected, 1), unknownEnd), float64(guessWorth)
		if model != nil && model.reach[k] > 0 {
			end, worth = 1-model.reach[k+1]/model.reach[k], modelWorth
		}
		end = (float64(t.ended[k]) + worth*end) / (float64(t.came[k]) + worth)
		t.reach[k+1] = t.reach[k] * (1 - end)
	}
	t.reach[steps] = 0
}

// Reach is the share of answers that come as far as n tokens.
func (t *Table) Reach(n int) float64 { return t.within(Step(n), n) }

// within is Reach for a length in step k.
func (t *Table) within(k, n int) float64 {
	if k >= steps-1 {
		return 0
	}
	part := float64(n-bounds[k].begin) * bounds[k].per
	return t.reach[k] + part*(t.reach[k+1]-t.reach[k])
}
