package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
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

// refusal is an outcome that is not an answer, with the numbers its text names.
type refusal struct {
	reason  reason.Reason
	model   string
	param   string        // the body's key at fault
	detail  string        // replaces the table's text where the cause is known better; nothing of the body but names of keys
	ahead   int           // requests ahead
	wait    time.Duration // predicted wait, or for a passed deadline the wait that was
	limit   time.Duration // the longest predicted wait it would have got a place for; only for /debug/state
	retry   time.Duration // come back then; 0 = the table's, below 0 = never
	noRetry bool          // x-should-retry: false on top of the table's
	status  int           // 0 = the table's
	seed    byte          // random per request: spreads the table's retry
}

// rule is one line of the table.
type rule struct {
	status     int
	kind, code string        // "type" and "code" of the error; code "" = the reason's name
	retry      time.Duration // Retry-After where the refusal has none; 0 = no header
	noRetry    bool          // x-should-retry: false
}

const (
	rateLimit   = "rate_limit_error"
	unavailable = "service_unavailable_error"
	invalid     = "invalid_request_error"
	timedOut    = "timeout_error"
)

// rules is the table of every way a request can end without an answer. 429: busy,
// come back then. 503: nobody can serve now. Never a bare 500.
var rules = map[reason.Reason]rule{
	reason.RateLimited: {status: 429, kind: rateLimit, retry: leastRetry},
	reason.BudgetSpent: {status: 429, kind: "insufficient_quota", noRetry: true},
	// The status of these two is Config.SaturatedStatus.
	reason.Overloaded: {status: 429, kind: rateLimit, retry: leastRetry},
	reason.LaneFull:   {status: 429, kind: rateLimit, code: "server_is_overloaded", retry: leastRetry},

	reason.NoEngine:        {status: 503, kind: unavailable, retry: 5 * time.Second},
	reason.BrokerAway:      {status: 503, kind: unavailable, retry: 5 * time.Second},
	reason.RecordStoreAway: {status: 503, kind: unavailable, retry: 5 * time.Second},
	reason.Draining:        {status: 503, kind: unavailable, retry: leastRetry},
	reason.Starting:        {status: 503, kind: unavailable, retry: leastRetry},
	reason.EngineBusy:      {status: 503, kind: unavailable, retry: 2 * time.Second},
	reason.EngineDown:      {status: 503, kind: unavailable, retry: 2 * time.Second},
	reason.EngineDrained:   {status: 503, kind: unavailable, retry: 2 * time.Second},
	reason.TriesUsed:       {status: 503, kind: unavailable, retry: 2 * time.Second},
	reason.Orphan:          {status: 503, kind: unavailable, retry: leastRetry},
	reason.UpstreamLost:    {status: 503, kind: unavailable, retry: leastRetry},
	reason.Aborted:         {status: 503, kind: unavailable, noRetry: true},

	reason.DeadlinePassed: {status: 504, kind: timedOut, retry: 5 * time.Second},
	reason.Stalled:        {status: 504, kind: timedOut, retry: 2 * time.Second},

	reason.BadRequest:    {status: 400, kind: invalid},
	reason.TooLarge:      {status: 400, kind: invalid, code: "context_length_exceeded"},
	reason.EngineRefused: {status: 400, kind: invalid}, // only where the engine gave no body of its own
	reason.NoKey:         {status: 401, kind: invalid},
	reason.Forbidden:     {status: 403, kind: "permission_error"},
	reason.UnknownModel:  {status: 404, kind: invalid},
	reason.NotFound:      {status: 404, kind: invalid},
	reason.BodyTooLarge:  {status: 413, kind: invalid},
	reason.Filtered:      {status: 400, kind: invalid},
}

// rule finds the line for a refusal. A reason without one is a fault in the
// engine's side that nobody foresaw: 503.
func (c *Config) rule(f *refusal) rule {
	r, ok := rules[f.reason]
	if !ok {
		r = rule{status: 503, kind: unavailable, retry: leastRetry}
	}
	if (f.reason == reason.Overloaded || f.reason == reason.LaneFull) && c.SaturatedStatus == http.StatusServiceUnavailable {
		r.status, r.kind = http.StatusServiceUnavailable, unavailable
	}
	if f.status != 0 {
		r.status = f.status
	}
	if r.code == "" {
		r.code = f.reason.String()
	}
	if f.retry < 0 {
		r.retry, r.noRetry = 0, true
	}
	if r.retry > 0 {
		// The table's times spread by a quarter, so that a crowd does not come back
		// at once; a refusal's own is spread already.
		r.retry = (r.retry + r.retry*time.Duration(f.seed)/(4*255)).Truncate(time.Second)
		if f.retry > 0 {
			r.retry = f.retry
		}
		r.retry = min(max(wholeSeconds(r.retry), leastRetry), mostRetry)
	}
	r.noRetry = r.noRetry || f.noRetry
	return r
}

// text names cause, number and remedy. Some SDKs give up for good on the words
// "billing" and "will reset at", and read the time out of "try again in N s".
func (f *refusal) text(retry time.Duration) string {
	s := f.detail
	if s == "" {
		s = f.cause()
	}
	if retry > 0 {
		s += " Please try again in " + count(int(retry/time.Second), "second") + "."
	}
	return s
}

func (f *refusal) cause() string {
	switch f.reason {
	case reason.RateLimited:
		return "Your limit of requests or tokens per minute is reached."
	case reason.BudgetSpent:
		return "Your token budget is used up. Ask whoever runs this service for more."
	case reason.Overloaded:
		return fmt.Sprintf("All engines for model '%s' are busy: %s ahead, about %s.", f.model, count(f.ahead, "request"), seconds(f.wait))
	case reason.LaneFull:
		return fmt.Sprintf("Your queue for model '%s' is full: %s ahead, about %s.", f.model, count(f.ahead, "request"), seconds(f.wait))
	case reason.NoEngine:
		return fmt.Sprintf("No engine for model '%s' is reachable.", f.model)
	case reason.BrokerAway:
		return "The queue cannot be reached, so the request was not accepted."
	case reason.RecordStoreAway:
		return "The request store cannot be reached, so the request was not accepted."
	case reason.Draining:
		return "This gateway is shutting down."
	case reason.Starting:
		return "This gateway is starting."
	case reason.EngineBusy, reason.EngineDown, reason.EngineDrained, reason.TriesUsed:
		return fmt.Sprintf("The engines for model '%s' failed before the first byte of the answer, each time it was tried.", f.model)
	case reason.UpstreamLost:
		return "The connection to the engine broke while it answered."
	case reason.Aborted:
		return "The request was aborted by an operator."
	case reason.DeadlinePassed:
		return fmt.Sprintf("No engine for model '%s' had room within the start deadline of %s.", f.model, seconds(f.wait))
	case reason.Stalled:
		return fmt.Sprintf("The engine sent nothing for %s.", seconds(f.wait))
	case reason.TooLarge:
		return fmt.Sprintf("The prompt is longer than model '%s' can hold. Shorten it.", f.model)
	case reason.EngineRefused:
		return "The engine refused the request."
	case reason.NoKey:
		return "No valid API key. Send \"Authorization: Bearer KEY\"."
	case reason.Forbidden:
		return "This API key may not do that."
	case reason.Filtered:
		return "The request was stopped by a filter of this service."
	case reason.UnknownModel:
		return fmt.Sprintf("The model '%s' does not exist here. GET /v1/models lists what does.", f.model)
	default:
		return fmt.Sprintf("The request failed (%s).", f.reason)
	}
}

// wholeSeconds rounds up, so that nobody comes back too early.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// seconds is d for a text: whole seconds above one, else as it is.
func seconds(d time.Duration) string {
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%d s", wholeSeconds(d)/time.Second)
}

func count(n int, noun string) string {
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

// write sends a refusal as a true status and returns it. Nothing may have been
// written to w before.
func (c *Config) write(w http.ResponseWriter, f *refusal) (status int) {
	r := c.rule(f)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Penstock-Reason", f.reason.String())
	if r.retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(r.retry/time.Second), 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(r.retry.Milliseconds(), 10))
	}
	if r.noRetry {
		h.Set("X-Should-Retry", "false")
	}
	switch f.reason {
	case reason.NoKey:
		h.Set("Www-Authenticate", "Bearer")
	case reason.Draining:
		h.Set("Connection", "close") // the next request finds another gateway
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(errorBody(f.text(r.retry), r.kind, f.param, r.code)) // a client that is gone changes nothing
	return r.status
}

// errorEvent is a refusal on a stream whose status is sent already.
func (c *Config) errorEvent(f *refusal) []byte {
	r := c.rule(f)
	return errorFrame(errorBody(f.text(r.retry), r.kind, f.param, r.code))
}

// errorFrame ends a stream: the error object, then [DONE], which clients wait for
// also after an error. body has no line breaks.
func errorFrame(body []byte) []byte {
	frame := append([]byte("data: "), body...)
	return append(frame, "\n\ndata: [DONE]\n\n"...)
}
