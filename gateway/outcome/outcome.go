// Package outcome is how the requests of a gateway end, and how they are counted: the
// closed sets of what a label may say, and the metrics they are labels of.
package outcome

import (
	"penstock/reason"
	"penstock/registry"
)

// Outcome is the metric label for how a request ended; the reason is in the log.
type Outcome string

// The outcomes.
const (
	Succeeded Outcome = "ok"
	Rejected  Outcome = "rejected" // the request itself is wrong: 4xx, by us or the engine
	Refused   Outcome = "refused"  // 429 or 503 before it was queued
	Expired   Outcome = "expired"  // its start deadline passed
	Failed    Outcome = "failed"   // engines, lanes or records failed it
	Aborted   Outcome = "aborted"  // the client went away or did not read
)

// Abort is whether the cancel of a request reached its record.
type Abort string

// The outcomes of an abort.
const (
	AbortCanceled Abort = "canceled"
	AbortOver     Abort = "over"  // the request had ended meanwhile
	AbortError    Abort = "error" // the record store did not answer
)

// Filter is what became of a request at a filter.
type Filter string

// The outcomes of a filter.
const (
	FilterPassed  Filter = "passed"
	FilterStopped Filter = "stopped"
	FilterFailed  Filter = "failed" // the filter could not be asked, or could not read it
)

// What an estimate is of.
const (
	estimatePrompt = "prompt"
	estimateOutput = "output"
)

// stageName is the label for how far an aborted request was.
func stageName(s registry.State) string {
	switch s {
	case registry.Streaming:
		return "streaming"
	case registry.Running:
		return "running"
	default:
		return "queued"
	}
}

// of sorts the reason of a request's end into an outcome.
func of(why reason.Reason) Outcome {
	switch why {
	case reason.Finished:
		return Succeeded
	case reason.BadRequest, reason.TooLarge, reason.EngineRefused, reason.NoKey, reason.Forbidden, reason.UnknownModel, reason.NotFound, reason.BodyTooLarge, reason.Filtered:
		return Rejected
	case reason.RateLimited, reason.BudgetSpent, reason.Overloaded, reason.LaneFull, reason.NoEngine, reason.Draining, reason.Starting:
		return Refused
	case reason.DeadlinePassed:
		return Expired
	case reason.ClientGone, reason.ClientSlow, reason.Aborted:
		return Aborted
	default:
		return Failed
	}
}
