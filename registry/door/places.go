package door

import (
	"slices"
	"time"

	"penstock/lane"
)

const (
	// slot is how exactly a kept place's moment is remembered.
	slot = 100 * time.Millisecond
	// slots cover the longest Retry-After and placeGrace.
	slots = 640
	// placeGrace is how long after its moment a place can be taken: the way back of
	// the refusal and of the new request.
	placeGrace = 2 * time.Second
	// shownGain is the EWMA's of how many places are taken, about the last twenty.
	shownGain = 0.05
	// slotPlaces bounds the places one slot remembers by fingerprint: 1,280 refusals
	// per second; in all 640 KiB.
	slotPlaces = 128
	// placesShare of the drain rate is promised; the rest is left to newcomers and
	// to forecasts that were wrong.
	placesShare = 0.7
	// turnsMost bounds the lanes whose turns are remembered; those of more take the
	// places that are left.
	turnsMost = 4096
)

// places is what refused clients were told: how much work is due back when, and
// whose. A ring of slots, the past ones cleared on the way; 20 KiB.
type places struct {
	ring   [slots]due
	turns  map[lane.Key]time.Duration // until when each lane's fair share is promised; bounded by turnsMost
	oldest int64                      // the slot of the ring that is cleared next
	shown  float64                    // how often a place is taken, EWMA
}

type due struct {
	tokens int
	whose  []uint64 // fingerprints
}

// pass forgets the places nobody came for, and turns that are over.
func (p *places) pass(at time.Duration) {
	past := int64((at - placeGrace) / slot)
	if p.oldest >= past {
		return
	}
	for p.oldest = max(p.oldest, past-slots); p.oldest < past; p.oldest++ {
		d := &p.ring[p.oldest%slots]
		for range d.whose {
			p.shown -= shownGain * p.shown
		}
		*d = due{}
	}
	for k, until := range p.turns {
		if until <= at {
			delete(p.turns, k)
		}
	}
}

// keep promises tokens for a moment at most 60 s ahead; false: it cannot be known
// whose they are.
func (p *places) keep(at time.Duration, fingerprint uint64, tokens int) bool {
	d := &p.ring[int64(at/slot)%slots]
	d.tokens += tokens
	if fingerprint == 0 || len(d.whose) == slotPlaces {
		return false
	}
	d.whose = append(d.whose, fingerprint)
	return true
}

// soon is the work that is likely to come back before at + ahead.
func (p *places) soon(at, ahead time.Duration) float64 {
	p.pass(at)
	sum := 0
	for s := int64(at/slot) + 1; s <= int64((at+min(ahead, maxRetry))/slot); s++ {
		sum += p.ring[s%slots].tokens
	}
	return p.shown * float64(sum)
}

// take is true once for a place that is due about now.
func (p *places) take(at time.Duration, fingerprint uint64) bool {
	p.pass(at)
	for s := p.oldest; fingerprint != 0 && s <= int64(at/slot)+1; s++ {
		d := &p.ring[s%slots]
		if i := slices.Index(d.whose, fingerprint); i >= 0 {
			d.whose = slices.Delete(d.whose, i, i+1)
			p.shown += shownGain * (1 - p.shown)
			return true
		}
	}
	return false
}

// firstFree is the shortest time from which on there is always room for tokens
// more, beside all places kept by this and higher tiers: room grows at rate from
// free on; maxRetry if not within 60 s. Two passes over the ring.
func (m *model) firstFree(rank, tokens int, rate float64, at, free time.Duration) time.Duration {
	first := int64(at/slot) + 1
	last := first + int64(maxRetry/slot) - 1
	var classes []*class
	kept := tokens
	for _, c := range m.classes {
		if c.rank <= rank {
			c.places.pass(at)
			classes = append(classes, c)
			for s := first; s <= last; s++ {
				kept += c.places.ring[s%slots].tokens
			}
		}
	}
	s := last
	for ; s >= first && float64(kept) <= rate*(time.Duration(s)*slot-at-free).Seconds(); s-- {
		for _, c := range classes {
			kept -= c.places.ring[s%slots].tokens
		}
	}
	if s == last {
		return maxRetry
	}
	return time.Duration(s+1)*slot - at
}
