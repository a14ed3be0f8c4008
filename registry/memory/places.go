package memory

import "time"

const (
	// slot is how exactly a kept place's moment is remembered. It is given up as
	// its slot begins: who comes back on time finds its room.
	slot = 100 * time.Millisecond
	// slots cover the longest Retry-After and a little.
	slots = 640
	// placesAhead is how soon a kept place must be due to hold room against a
	// newcomer. Work drains meanwhile, so this only has to cover the next arrivals.
	placesAhead = 5 * slot
	// placesShare of the drain rate is promised; the rest is left to newcomers and
	// to forecasts that were wrong.
	placesShare = 0.8
)

// places is the tokens promised to refused clients for the moment they were told:
// a ring of slots, the past ones cleared on the way. 5 KiB.
type places struct {
	tokens [slots]int
	next   int64 // the first slot not yet begun
}

// pass gives up the places whose time has come.
func (p *places) pass(at time.Duration) {
	begun := int64(at/slot) + 1
	for p.next = max(p.next, begun-slots); p.next < begun; p.next++ {
		p.tokens[p.next%slots] = 0
	}
}

// keep promises tokens for the moment due, at most 60 s ahead.
func (p *places) keep(due time.Duration, tokens int) { p.tokens[int64(due/slot)%slots] += tokens }

// soon is what is promised for the next moments.
func (p *places) soon(at time.Duration) int {
	p.pass(at)
	sum := 0
	for i := range int64(placesAhead / slot) {
		sum += p.tokens[(p.next+i)%slots]
	}
	return sum
}

// firstFree is the shortest time from which on there is always room for tokens
// more, beside all places kept by this and higher tiers: room grows at rate from
// free on. False: not within 60 s. One pass from the far end.
func (m *model) firstFree(rank, tokens int, rate float64, at, free time.Duration) (time.Duration, bool) {
	kept := 0
	for _, c := range m.classes {
		if c.rank <= rank {
			c.places.pass(at)
			for _, n := range c.places.tokens {
				kept += n
			}
		}
	}
	first := int64(at/slot) + 1
	last := first + int64(maxRetry/slot) - 1
	s := last
	for ; s >= first; s-- {
		due := time.Duration(s)*slot - at
		if rate*(due-free).Seconds()-float64(kept+tokens) < 0 {
			break
		}
		for _, c := range m.classes {
			if c.rank <= rank {
				kept -= c.places.tokens[s%slots]
			}
		}
	}
	return time.Duration(s+1)*slot - at, s < last
}
