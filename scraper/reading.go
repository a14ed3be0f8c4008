package scraper

import (
	"bytes"
	"fmt"
	"math"
	"math/bits"
)

// maxEngines bounds the data-parallel ranks one server may report.
const maxEngines = 64

// reading collects one page's series, per name and engine. It is reused: only the
// masks are cleared.
type reading struct {
	engines [maxEngines][]byte // labels seen, into the page
	n       int
	mask    [slots]uint64 // bit e: engines[e] has a value
	value   [slots][maxEngines]float64
}

// values is a page that passed: one number per family found.
type values struct {
	of    [families]float64
	alias [families]int8 // which of its names was found; -1: none
	ranks int
}

// page reads a whole page. Its errors are *Error.
func (r *reading) page(p page) (values, error) {
	if err := whole(p); err != nil {
		return values{}, err
	}
	r.reset()
	if err := r.scan(p.body); err != nil {
		return values{}, err
	}
	return r.fold()
}

func (r *reading) reset() {
	r.n = 0
	clear(r.mask[:])
}

// whole refuses a page that may have lost its end. A page of several engines cut
// between two lines would read as a smaller load, so a last line without its
// newline spoils the page, not only the line. OpenMetrics says where it ends.
func whole(p page) error {
	body := bytes.TrimRight(p.body, " \t\r\n")
	ended := bytes.HasSuffix(body, []byte("\n# EOF"))
	switch {
	case len(body) == 0:
		return problem(Empty, "", "no content")
	case p.openMetrics && !ended:
		return problem(Truncated, "", "no # EOF")
	case !ended && p.body[len(p.body)-1] != '\n':
		return problem(Truncated, "", "the last line is cut")
	}
	return nil
}

// add takes one series of w.
func (r *reading) add(w *wanted, l *labels, v float64) error {
	if err := inRange(w, v, table[w.family].max); err != nil {
		return err
	}
	if w.family != kvTokens {
		return r.put(w, w.slot, l.engine, v)
	}
	bySize, byBlocks := l.tokens()
	if bySize > 0 && bySize < maxTokens {
		if err := r.put(w, w.slot, l.engine, bySize); err != nil {
			return err
		}
	}
	if byBlocks > 0 && byBlocks < maxTokens {
		return r.put(w, w.slot+1, l.engine, byBlocks)
	}
	return nil
}

// put notes an engine's value. The largest of several stays.
func (r *reading) put(w *wanted, slot int, engine []byte, v float64) error {
	e := 0
	for e < r.n && !bytes.Equal(r.engines[e], engine) {
		e++
	}
	if e == r.n {
		if r.n == maxEngines {
			return &Error{Problem: TooLarge, Name: w.name, Err: fmt.Errorf("more than %d engines", maxEngines)}
		}
		r.engines[e] = engine
		r.n++
	}
	bit := uint64(1) << e
	if r.mask[slot]&bit == 0 || v > r.value[slot][e] {
		r.value[slot][e] = v
	}
	r.mask[slot] |= bit
	return nil
}

func inRange(w *wanted, v, limit float64) error {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return &Error{Problem: NotFinite, Name: w.name, Err: fmt.Errorf("reads %v", v)}
	case v < 0 || v > limit:
		return &Error{Problem: OutOfRange, Name: w.name, Err: fmt.Errorf("reads %v, want 0 to %v", v, limit)}
	}
	return nil
}

// fold makes one value per family out of its preferred name's engines. The
// required families must speak of the same engines.
func (r *reading) fold() (values, error) {
	var v values
	slot := 0
	var ranks uint64
	for f := range table {
		v.alias[f] = -1
		for a := range table[f].names {
			if v.alias[f] < 0 && r.mask[slot] != 0 {
				v.alias[f] = int8(a)
				v.of[f] = r.over(slot, table[f].fold)
				if table[f].required {
					if ranks != 0 && ranks != r.mask[slot] {
						return values{}, problem(Missing, table[f].names[a], "not for every engine")
					}
					ranks = r.mask[slot]
				}
			}
			slot++
		}
		if table[f].required && v.alias[f] < 0 {
			return values{}, problem(Missing, table[f].names[0], "not on the page; an engine started with --disable-log-stats exports nothing")
		}
	}
	v.ranks = bits.OnesCount64(ranks)
	return v, nil
}

func (r *reading) over(slot int, how fold) float64 {
	var out float64
	first := true
	for mask := r.mask[slot]; mask != 0; mask &= mask - 1 {
		v := r.value[slot][bits.TrailingZeros64(mask)]
		switch {
		case first:
			out = v
		case how == sum:
			out += v
		case how == most:
			out = max(out, v)
		case how == least:
			out = min(out, v)
		}
		first = false
	}
	return out
}
