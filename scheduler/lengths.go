package scheduler

import "penstock/cost"

const (
	lengthWindow   = 512 // finishes remembered per class and per model
	lengthEnough   = 50  // from which on they are believed
	lengthQuantile = 0.7
	lengthClasses  = 128 // classes and models together; 4 KiB each
)

// lengths is what answers came to, per class and per model, by hash. A hash of 0 is
// not known and teaches nothing.
type lengths struct {
	of   map[uint64]int // place in all
	all  []class
	tick uint64
}

type class struct {
	cost.Lengths
	hash uint64
	used uint64
}

func newLengths() lengths { return lengths{of: make(map[uint64]int, lengthClasses)} }

// learn takes in the output of one sequence.
func (l *lengths) learn(hash uint64, n int) {
	if hash == 0 {
		return
	}
	l.tick++
	i, ok := l.of[hash]
	if !ok {
		i = l.place()
		l.all[i] = class{Lengths: cost.NewLengths(lengthWindow), hash: hash}
		l.of[hash] = i
	}
	l.all[i].used = l.tick
	l.all[i].Add(n)
}

// place is a new one, or that of the class unused for longest once all are taken.
func (l *lengths) place() int {
	if len(l.all) < lengthClasses {
		l.all = append(l.all, class{})
		return len(l.all) - 1
	}
	oldest := 0
	for i := range l.all {
		if l.all[i].used < l.all[oldest].used {
			oldest = i
		}
	}
	delete(l.of, l.all[oldest].hash)
	return oldest
}

// expect is how many output tokens a sequence that has out of them has still to come,
// at least 1: by its class, else its model, else what the gateway expected, else, past
// all that is known, a quarter of what it has. It never passes most in all.
func (l *lengths) expect(class, model uint64, out, expected, most int) int {
	length, ok := l.above(class, out)
	if !ok {
		length, ok = l.above(model, out)
	}
	if !ok {
		if length = expected; length <= out {
			length = out + out/4 + halfBlock
		}
	}
	return max(min(length, most)-out, 1)
}

func (l *lengths) above(hash uint64, out int) (int, bool) {
	i, ok := l.of[hash]
	if !ok || l.all[i].Len() < lengthEnough {
		return 0, false
	}
	return l.all[i].Above(out, lengthQuantile)
}
