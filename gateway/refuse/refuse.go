// Package refuse is the table of every way a request can end without an answer, and how
// a client is told: status, headers, and a text that names cause, number and remedy.
package refuse

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"penstock/reason"
)

// Retry-After stays in this range: SDKs obey up to 60 s and answer a longer one
// with a retry at once.
const (
	leastRetry = time.Second
	mostRetry  = 60 * time.Second
)

// Refusal is an outcome that is not an answer, with the numbers its text names.
type Refusal struct {
	Reason  reason.Reason
	Model   string
	Param   string        // the body's key at fault
	Detail  string        // replaces the table's text where the cause is known better; nothing of the body but names of keys
	Ahead   int           // requests ahead
	Wait    time.Duration // predicted wait, or for a passed deadline the wait that was
	Limit   time.Duration // the longest predicted wait it would have got a place for; only for /debug/state
	Retry   time.Duration // come back then; 0 = the table's, below 0 = never
	NoRetry bool          // x-should-retry: false on top of the table's
	Status  int           // 0 = the table's
	Seed    byte          // random per request: spreads the table's retry
}

// Rule is one line of the table.
type Rule struct {
	Status     int
	Kind, Code string        // "type" and "code" of the error; code "" = the reason's name
	Retry      time.Duration // Retry-After where the refusal has none; 0 = no header
	NoRetry    bool          // x-should-retry: false
}

const (
	rateLimit   = "rate_limit_error"
	unavailable = "service_unavailable_error"
	invalid     = "invalid_request_error"
	timedOut    = "timeout_error"
)

// rules is the table of every way a request can end without an answer. 429: busy,
// come back then. 503: nobody can serve now. Never a bare 500.
var rules = map[reason.Reason]Rule{
	reason.RateLimited: {Status: 429, Kind: rateLimit, Retry: leastRetry},
	reason.BudgetSpent: {Status: 429, Kind: "insufficient_quota", NoRetry: true},
	// The status of these two is Table.Saturated.
	reason.Overloaded: {Status: 429, Kind: rateLimit, Retry: leastRetry},
	reason.LaneFull:   {Status: 429, Kind: rateLimit, Code: "server_is_overloaded", Retry: leastRetry},

	reason.NoEngine:        {Status: 503, Kind: unavailable, Retry: 5 * time.Second},
	reason.BrokerAway:      {Status: 503, Kind: unavailable, Retry: 5 * time.Second},
	reason.RecordStoreAway: {Status: 503, Kind: unavailable, Retry: 5 * time.Second},
	reason.Draining:        {Status: 503, Kind: unavailable, Retry: leastRetry},
	reason.Starting:        {Status: 503, Kind: unavailable, Retry: leastRetry},
	reason.EngineBusy:      {Status: 503, Kind: unavailable, Retry: 2 * time.Second},
	reason.EngineDown:      {Status: 503, Kind: unavailable, Retry: 2 * time.Second},
	reason.EngineDrained:   {Status: 503, Kind: unavailable, Retry: 2 * time.Second},
	reason.TriesUsed:       {Status: 503, Kind: unavailable, Retry: 2 * time.Second},
	reason.Orphan:          {Status: 503, Kind: unavailable, Retry: leastRetry},
	reason.UpstreamLost:    {Status: 503, Kind: unavailable, Retry: leastRetry},
	reason.Aborted:         {Status: 503, Kind: unavailable, NoRetry: true},

	reason.DeadlinePassed: {Status: 504, Kind: timedOut, Retry: 5 * time.Second},
	reason.Stalled:        {Status: 504, Kind: timedOut, Retry: 2 * time.Second},

	reason.BadRequest:    {Status: 400, Kind: invalid},
	reason.TooLarge:      {Status: 400, Kind: invalid, Code: "context_length_exceeded"},
	reason.EngineRefused: {Status: 400, Kind: invalid}, // only where the engine gave no body of its own
	reason.NoKey:         {Status: 401, Kind: invalid},
	reason.Forbidden:     {Status: 403, Kind: "permission_error"},
	reason.UnknownModel:  {Status: 404, Kind: invalid},
	reason.NotFound:      {Status: 404, Kind: invalid},
	reason.BodyTooLarge:  {Status: 413, Kind: invalid},
	reason.Filtered:      {Status: 400, Kind: invalid},
}

// Reasons are all that are in the table.
func Reasons() []reason.Reason { return slices.Sorted(maps.Keys(rules)) }

// Table is rules as an operator has it.
type Table struct {
	Saturated int // status of "all engines are busy": 429 or 503
}

// Rule finds the line for a refusal. A reason without one is a fault in the
// engine's side that nobody foresaw: 503.
func (t Table) Rule(f *Refusal) Rule {
	r, ok := rules[f.Reason]
	if !ok {
		r = Rule{Status: 503, Kind: unavailable, Retry: leastRetry}
	}
	if (f.Reason == reason.Overloaded || f.Reason == reason.LaneFull) && t.Saturated == http.StatusServiceUnavailable {
		r.Status, r.Kind = http.StatusServiceUnavailable, unavailable
	}
	if f.Status != 0 {
		r.Status = f.Status
	}
	if r.Code == "" {
		r.Code = f.Reason.String()
	}
	if f.Retry < 0 {
		r.Retry, r.NoRetry = 0, true
	}
	if r.Retry > 0 {
		// The table's times spread by a quarter, so that a crowd does not come back
		// at once; a refusal's own is spread already.
		r.Retry = (r.Retry + r.Retry*time.Duration(f.Seed)/(4*255)).Truncate(time.Second)
		if f.Retry > 0 {
			r.Retry = f.Retry
		}
		r.Retry = min(max(WholeSeconds(r.Retry), leastRetry), mostRetry)
	}
	r.NoRetry = r.NoRetry || f.NoRetry
	return r
}

// Sooner reports whether f lets a client come back sooner than g, which is nil where
// there is no coming back.
func (t Table) Sooner(f, g *Refusal) bool {
	mine := t.Rule(f)
	back := mine.Retry > 0 && !mine.NoRetry
	if g == nil {
		return back
	}
	other := t.Rule(g)
	if other.Retry == 0 || other.NoRetry {
		return true
	}
	return back && mine.Retry < other.Retry
}

// Text names cause, number and remedy. Some SDKs give up for good on the words
// "billing" and "will reset at", and read the time out of "try again in N s".
func (f *Refusal) Text(retry time.Duration) string {
	s := f.Detail
	if s == "" {
		s = f.Cause()
	}
	if retry > 0 {
		s += " Please try again in " + Count(int(retry/time.Second), "second") + "."
	}
	return s
}

// Cause is the table's text.
func (f *Refusal) Cause() string {
	switch f.Reason {
	case reason.RateLimited:
		return "Your limit of requests or tokens per minute is reached."
	case reason.BudgetSpent:
		return "Your token budget is used up. Ask whoever runs this service for more."
	case reason.Overloaded:
		return fmt.Sprintf("All engines for model '%s' are busy: %s ahead, about %s.", f.Model, Count(f.Ahead, "request"), Seconds(f.Wait))
	case reason.LaneFull:
		return fmt.Sprintf("Your queue for model '%s' is full: %s ahead, about %s.", f.Model, Count(f.Ahead, "request"), Seconds(f.Wait))
	case reason.NoEngine:
		return fmt.Sprintf("No engine for model '%s' is reachable.", f.Model)
	case reason.BrokerAway:
		return "The queue cannot be reached, so the request was not accepted."
	case reason.RecordStoreAway:
		return "The request store cannot be reached, so the request was not accepted."
	case reason.Draining:
		return "This gateway is shutting down."
	case reason.Starting:
		return "This gateway is starting."
	case reason.EngineBusy, reason.EngineDown, reason.EngineDrained, reason.TriesUsed:
		return fmt.Sprintf("The engines for model '%s' failed before the first byte of the answer, each time it was tried.", f.Model)
	case reason.UpstreamLost:
		return "The connection to the engine broke while it answered."
	case reason.Aborted:
		return "The request was aborted by an operator."
	case reason.DeadlinePassed:
		return fmt.Sprintf("No engine for model '%s' had room within the start deadline of %s.", f.Model, Seconds(f.Wait))
	case reason.Stalled:
		return fmt.Sprintf("The engine sent nothing for %s.", Seconds(f.Wait))
	case reason.TooLarge:
		return fmt.Sprintf("The prompt is longer than model '%s' can hold. Shorten it.", f.Model)
	case reason.EngineRefused:
		return "The engine refused the request."
	case reason.NoKey:
		return "No valid API key. Send \"Authorization: Bearer KEY\"."
	case reason.Forbidden:
		return "This API key may not do that."
	case reason.Filtered:
		return "The request was stopped by a filter of this service."
	case reason.UnknownModel:
		return fmt.Sprintf("The model '%s' does not exist here. GET /v1/models lists what does.", f.Model)
	default:
		return fmt.Sprintf("The request failed (%s).", f.Reason)
	}
}

// WholeSeconds rounds up, so that nobody comes back too early.
func WholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// Seconds is d for a text: whole seconds above one, else as it is.
func Seconds(d time.Duration) string {
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%d s", WholeSeconds(d)/time.Second)
}

// Count is a number of things for a text.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// errorBody is OpenAI's error object as JSON.
func errorBody(message, kind, param, code string) []byte {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	o := object{Message: message, Type: kind, Code: code}
	if param != "" {
		o.Param = &param
	}
	body, _ := json.Marshal(map[string]object{"error": o}) // strings only: cannot fail
	return body
}

// Write sends a refusal as a true status and returns it. Nothing may have been
// written to w before.
func (t Table) Write(w http.ResponseWriter, f *Refusal) (status int) {
	r := t.Rule(f)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Penstock-Reason", f.Reason.String())
	if r.Retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(r.Retry/time.Second), 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(r.Retry.Milliseconds(), 10))
	}
	if r.NoRetry {
		h.Set("X-Should-Retry", "false")
	}
	switch f.Reason {
	case reason.NoKey:
		h.Set("Www-Authenticate", "Bearer")
	case reason.Draining:
		h.Set("Connection", "close") // the next request finds another gateway
	}
	w.WriteHeader(r.Status)
	_, _ = w.Write(errorBody(f.Text(r.Retry), r.Kind, f.Param, r.Code)) // a client that is gone changes nothing
	return r.Status
}

// Event is a refusal on a stream whose status is sent already.
func (t Table) Event(f *Refusal) []byte {
	r := t.Rule(f)
	return Frame(errorBody(f.Text(r.Retry), r.Kind, f.Param, r.Code))
}

// Frame ends a stream: the error object, then [DONE], which clients wait for
// also after an error. body has no line breaks.
func Frame(body []byte) []byte {
	frame := append([]byte("data: "), body...)
	return append(frame, "\n\ndata: [DONE]\n\n"...)
}
