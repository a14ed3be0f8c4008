package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock/fleet"
	"penstock/gateway/refuse"
	"penstock/reason"
)

const (
	maxLabel   = 128 // bytes of a client's x-request-id
	sdkPart    = 0.8 // part of an SDK's own timeout that may be spent waiting for a start
	leastStart = 250 * time.Millisecond

	longestTTFT = 600 * time.Second // that a client may name
)

// limits are the times one request must meet.
type limits struct {
	deadline      time.Duration // from arrival to start
	deadlineNamed bool          // by x-penstock-start-timeout-ms
	patience      time.Duration // what an SDK's or proxy's own timeout leaves for it; 0 = it says none
	idle          bool          // that timeout starts anew with every byte
	relieved      bool          // the deadline is longer because its tier has relief
	ttft          time.Duration
	ttftNamed     bool
	tpot          time.Duration
}

// parseLimits reads the headers that name times; l are the limits of a request that
// names none, most is the longest start deadline. wrong names a header with a bad
// value, the value and the fix: a typo must not turn into a default silently.
func parseLimits(h http.Header, l limits, most time.Duration) (_ limits, wrong string) {
	own := []struct {
		header string
		most   time.Duration
		into   *time.Duration
		named  *bool
	}{
		{"X-Penstock-Start-Timeout-Ms", most, &l.deadline, &l.deadlineNamed},
		{"X-Slo-Ttft-Ms", longestTTFT, &l.ttft, &l.ttftNamed},
		{"X-Slo-Tpot-Ms", time.Minute, &l.tpot, new(bool)},
	}
	for _, o := range own {
		value := h.Get(o.header)
		if value == "" {
			continue
		}
		ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if most := float64(o.most.Milliseconds()); err != nil || !(ms >= 1 && ms <= most) {
			return l, fmt.Sprintf("The header %s is %q. Send milliseconds from 1 to %.0f.", strings.ToLower(o.header), cut(value), most)
		}
		*o.into, *o.named = time.Duration(ms*float64(time.Millisecond)), true
	}
	// What an SDK or proxy says about its own patience may only shorten the wait.
	for _, p := range patiences {
		value := h.Get(p.header)
		if value == "" {
			continue
		}
		patience, ok := parseTimeout(strings.TrimSpace(value), p.unit)
		if !ok {
			fix := "Send seconds (\"6\"), or a number with a unit (\"6s\", \"6000ms\"), at most a year."
			if p.unit == time.Millisecond {
				fix = "Send milliseconds (\"6000\"), at most a year."
			}
			return l, fmt.Sprintf("The header %s is %q. %s", strings.ToLower(p.header), cut(value), fix)
		}
		if patience == 0 { // one SDK rounds a timeout under 1 s down to 0
			continue
		}
		part := max(time.Duration(sdkPart*float64(patience)), time.Millisecond)
		l.deadline = min(l.deadline, part)
		if l.patience == 0 || part < l.patience {
			l.patience, l.idle = part, p.idle
		}
	}
	return l, ""
}

// patiences are the headers by which clients and proxies say how long they wait.
var patiences = []struct {
	header string
	unit   time.Duration // of a bare number
	idle   bool          // it counts from byte to byte: a stream needs its first one in time
}{
	{"X-Request-Timeout", time.Second, false},
	{"X-Stainless-Read-Timeout", time.Second, true},
	{"X-Stainless-Timeout", time.Second, true}, // until the headers come
	{"X-Envoy-Expected-Rq-Timeout-Ms", time.Millisecond, false},
}

// fit takes the time that the answer itself needs off the client's patience. It reports
// false where nothing is left: not even a start at once would answer in time.
func (l *limits) fit(inference time.Duration) bool {
	if l.patience == 0 {
		return true
	}
	l.patience -= inference
	l.deadline = min(l.deadline, l.patience)
	return l.patience > 0
}

// inference is how long the request is expected to run until its client has what its
// patience counts to: the whole answer, or of a stream the first token where the
// patience starts anew with every byte.
func (x *exchange) inference(firstToken time.Duration, output int, now time.Time) time.Duration {
	if x.limits.idle && x.request.Stream {
		return firstToken
	}
	return firstToken + time.Duration(output)*fleet.Step(x.g.directory.Rows(x.class.Lane.Pool), x.request.Model, now)
}

// tooImpatient is the refusal of a request that could not be answered in time by an
// idle engine either.
func (x *exchange) tooImpatient(timeout, inference time.Duration) *refuse.Refusal {
	return &refuse.Refusal{
		Reason: reason.DeadlinePassed, Model: x.request.Model, Retry: -1,
		Detail: fmt.Sprintf("The answer of model '%s' takes about %s, and the client's own timeout is %s, of which a fifth is kept for the way. Raise the timeout or lower max_tokens.", x.request.Model, refuse.Seconds(inference), refuse.Seconds(timeout)),
	}
}

// parseTimeout reads "6", "6.5" (of unit), "6s" or "6000ms", up to a year.
func parseTimeout(s string, unit time.Duration) (time.Duration, bool) {
	if number, ok := strings.CutSuffix(s, "ms"); ok {
		s, unit = number, time.Millisecond
	} else if number, ok := strings.CutSuffix(s, "s"); ok {
		s, unit = number, time.Second
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n*float64(unit) <= float64(365*24*time.Hour)) {
		return 0, false
	}
	return time.Duration(n * float64(unit)), true
}

// door is the longest predicted wait that is worth a place in the queue: what the
// first token's limit leaves after the engine's own time to first token. A client
// that names a start timeout is willing to wait that long, and so is who has relief.
func (l *limits) door(firstToken time.Duration) time.Duration {
	if l.deadlineNamed || l.relieved {
		return l.deadline
	}
	return min(max(l.ttft-firstToken, leastStart), l.deadline)
}

// label makes a client's x-request-id safe to echo and log: visible ASCII without
// quotes, at most maxLabel bytes. Empty where nothing is left.
func label(id string) string {
	id = id[:min(len(id), maxLabel)]
	safe := func(r rune) bool { return r > ' ' && r < 0x7f && r != '"' && r != '\\' }
	if strings.IndexFunc(id, func(r rune) bool { return !safe(r) }) < 0 {
		return id
	}
	return strings.Map(func(r rune) rune {
		if safe(r) {
			return r
		}
		return -1
	}, id)
}

// traceparent returns a W3C version 00 trace context, or "" for anything else.
func traceparent(s string) string {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return ""
	}
	for i := 3; i < len(s); i++ {
		hex := s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		if !hex && i != 35 && i != 52 {
			return ""
		}
	}
	return s
}

// cut shortens a client's value for an error text.
func cut(s string) string { return s[:min(len(s), 40)] }
