package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/sim/traces"
)

// Burst is more requests than usual for a while, a quarter into the measured span.
// The zero value is none.
type Burst struct {
	Times float64 // the usual rate
	For   time.Duration
}

// String is the form that ParseBurst reads, "" for none.
func (b Burst) String() string {
	if b.Times == 0 {
		return ""
	}
	return fmt.Sprintf("%gx%v", b.Times, b.For)
}

// ParseBurst reads 3x60s: three times the usual rate for 60 s. "" is none.
func ParseBurst(s string) (b Burst, err error) {
	if s == "" {
		return b, nil
	}
	times, long, found := strings.Cut(s, "x")
	if b.Times, err = strconv.ParseFloat(times, 64); err == nil && found {
		b.For, err = time.ParseDuration(long)
	}
	if err != nil || !found {
		return Burst{}, fmt.Errorf("%q: want times and how long, such as 3x60s", s)
	}
	return b, nil
}

func (c *Config) burstEnd() time.Duration { return c.Warm + c.Span/4 + c.Burst.For }

// burst adds its requests, from the place in the trace half way to the next shift's.
func (c *Config) burst(usual []traces.Arrival, rate float64, shift int) []traces.Arrival {
	if c.Burst.Times == 0 {
		return usual
	}
	extra := c.Workload.Arrivals(rate*(c.Burst.Times-1), c.Burst.For, c.Seed, 2*shift+1, 2*c.Shifts)
	for i := range extra {
		extra[i].At += c.burstEnd() - c.Burst.For
		extra[i].Extra = true
	}
	all := append(slices.Clone(usual), extra...)
	slices.SortStableFunc(all, func(a, b traces.Arrival) int { return cmp.Compare(a.At, b.At) })
	return all
}

// recovery is how long after a burst's end its trace is gone: until, of the requests
// that come within 2 s, at least 95 % as many are good as without the burst, and of all
// that come from then on. 2 s is the limit of the first token, half of what a recovery
// may take, and about 16 requests of a named workload; the second condition is against
// luck with so few. The requests are the same ones in both runs, so that the trace's own
// ups and downs are in neither. Where it isn't over by the end of what is measured, the
// time until then; the same if none are good without the burst.
func recovery(calm, stormy []outcome, from, end time.Duration) time.Duration {
	const window, step, back = sloTTFT, sloTTFT / 8, 0.95
	stormy = slices.DeleteFunc(slices.Clone(stormy), func(o outcome) bool { return o.Extra })
	good := func(all []outcome, from, to time.Duration) (n float64) {
		for i := range all {
			if o := &all[i]; o.good && o.At >= from && o.At < to {
				n++
			}
		}
		return n
	}
	if good(calm, from, end) == 0 {
		return end - from
	}
	for t := from; t+window <= end; t += step {
		if good(stormy, t, t+window) >= back*good(calm, t, t+window) && good(stormy, t, end) >= back*good(calm, t, end) {
			return t - from
		}
	}
	return end - from
}
