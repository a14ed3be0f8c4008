package script

import (
	"fmt"
	"strconv"
	"time"

	"penstock/quota"
)

// Answer is what a script answered: text and whole numbers. Values are read in place, from
// 0 on and below Len; one that is something else leaves Err.
type Answer struct {
	values []any
	err    error
}

// Read reads what a call answered, which must have the least number of values; err is
// the call's own and returned as it is.
func Read(answer any, err error, least int) (*Answer, error) {
	if err != nil {
		return nil, err
	}
	values, is := answer.([]any)
	if !is || len(values) < least {
		return nil, fmt.Errorf("registry/redis: a script answered %v, want %d values", answer, least)
	}
	return &Answer{values: values}, nil
}

// Len is the number of values.
func (a *Answer) Len() int { return len(a.values) }

// Err says which of the values that were read was not what it should be.
func (a *Answer) Err() error { return a.err }

// Text is value i as text.
func (a *Answer) Text(i int) string {
	switch v := a.values[i].(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	}
	a.err = fmt.Errorf("registry/redis: a script answered %v at %d", a.values[i], i)
	return ""
}

// Float is value i as a number.
func (a *Answer) Float(i int) float64 {
	f, err := strconv.ParseFloat(a.Text(i), 64)
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("registry/redis: a script answered %w at %d", err, i)
	}
	return f
}

// Int is value i as a whole number.
func (a *Answer) Int(i int) int { return int(a.Float(i)) }

// Millis is value i, of milliseconds.
func (a *Answer) Millis(i int) time.Duration {
	return time.Duration(min(a.Float(i), 1e12) * float64(time.Millisecond))
}

// Verdict reads how n limits stand from the answer of open; it says nothing where the
// request was open already.
func (a *Answer) Verdict(n int) (v quota.Verdict) {
	if n == 0 || len(a.values) < 9+2*n {
		return v
	}
	if tripped := a.Int(7); tripped > 0 {
		v.Refused, v.Tripped, v.Wait = true, min(tripped, n)-1, a.Millis(8)
	}
	for i := range min(n, quota.MaxLimits) {
		v.Rooms[i] = quota.Room{Remaining: int64(a.Float(9 + 2*i)), Reset: a.Millis(10 + 2*i)}
	}
	return v
}
