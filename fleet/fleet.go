// Package fleet is what agents tell each other and the gateways about their
// engines, one row each, and the arithmetic on rows. Pure: no IO, no clock.
package fleet

import (
	"slices"
	"time"

	"penstock/reason"
)

// StaleAfter is the age from which a row does not count.
const StaleAfter = time.Second

// Row is one engine as its agent sees it. Only its owner writes it.
type Row struct {
	Node       string
	Models     []string
	Pool       string
	State      reason.Reason // OK, or why it takes no work (Stale, Blind, Stuck, Asleep, Draining, Starting)
	Running    int
	Waiting    int
	KV         float64       // usage 0..1
	Step       time.Duration // 0 = not known
	Freeness   int           // KV tokens a new request may still take
	DrainRate  float64       // expected tokens started per second while work waits; 0 = not known
	FirstToken time.Duration // from start to first token, mean plus two deviations
	At         time.Time     // when the owner wrote it, on the reader's clock
}

// Serves reports whether the row's engine can take work for model now.
func (r *Row) Serves(model string, now time.Time) bool {
	return (r.State == reason.OK || r.State == reason.Stale) && now.Sub(r.At) <= StaleAfter && slices.Contains(r.Models, model)
}

// Known reports whether a row that counts speaks of an engine with model, whatever
// its state: then the rows are the truth, and older knowledge is not.
func Known(rows []Row, model string, now time.Time) bool {
	return slices.ContainsFunc(rows, func(r Row) bool { return now.Sub(r.At) <= StaleAfter && slices.Contains(r.Models, model) })
}

// Drain sums, over the rows that serve model now, how fast they take work. An
// engine whose own rate is not known yet counts as the mean of the others.
// firstToken is the shortest time to first token among them.
func Drain(rows []Row, model string, now time.Time) (engines int, tokensPerSecond float64, firstToken time.Duration) {
	known := 0
	for i := range rows {
		if !rows[i].Serves(model, now) {
			continue
		}
		if engines++; engines == 1 || rows[i].FirstToken < firstToken {
			firstToken = rows[i].FirstToken
		}
		if rows[i].DrainRate > 0 {
			known++
			tokensPerSecond += rows[i].DrainRate
		}
	}
	if known > 0 {
		tokensPerSecond *= float64(engines) / float64(known)
	}
	return engines, tokensPerSecond, firstToken
}
