// Package headers is what the headers of a request say: the times it must meet, its
// label, its trace, and whether it may be downgraded. A wrong value is told, never taken
// for a default.
package headers

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock/policy"
)

// SDKPart is the part of an SDK's own timeout that may be spent waiting for a start.
const SDKPart = 0.8

const (
	maxLabel   = 128 // bytes of a client's x-request-id
	leastStart = 250 * time.Millisecond

	longestTTFT = 600 * time.Second // that a client may name
)

// Limits are the times one request must meet.
type Limits struct {
	Deadline      time.Duration // from arrival to start
	DeadlineNamed bool          // by x-penstock-start-timeout-ms
	Patience      time.Duration // what an SDK's or proxy's own timeout leaves for it; 0 = it says none
	Idle          bool          // that timeout starts anew with every byte
	Relieved      bool          // the deadline is longer because its tier has relief
	TTFT          time.Duration
	TTFTNamed     bool
	TPOT          time.Duration
}

// Parse reads the headers that name times; l are the limits of a request that
// names none, most is the longest start deadline. wrong names a header with a bad
// value, the value and the fix: a typo must not turn into a default silently.
func Parse(h http.Header, l Limits, most time.Duration) (_ Limits, wrong string) {
	own := []struct {
		header string
		most   time.Duration
		into   *time.Duration
		named  *bool
	}{
		{"X-Penstock-Start-Timeout-Ms", most, &l.Deadline, &l.DeadlineNamed},
		{"X-Slo-Ttft-Ms", longestTTFT, &l.TTFT, &l.TTFTNamed},
		{"X-Slo-Tpot-Ms", time.Minute, &l.TPOT, new(bool)},
	}
	for _, o := range own {
		value := h.Get(o.header)
		if value == "" {
			continue
		}
		ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if most := float64(o.most.Milliseconds()); err != nil || !(ms >= 1 && ms <= most) {
			return l, fmt.Sprintf("The header %s is %q. Send milliseconds from 1 to %.0f.", strings.ToLower(o.header), Cut(value), most)
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
			return l, fmt.Sprintf("The header %s is %q. %s", strings.ToLower(p.header), Cut(value), fix)
		}
		if patience == 0 { // one SDK rounds a timeout under 1 s down to 0
			continue
		}
		part := max(time.Duration(SDKPart*float64(patience)), time.Millisecond)
		l.Deadline = min(l.Deadline, part)
		if l.Patience == 0 || part < l.Patience {
			l.Patience, l.Idle = part, p.idle
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

// Fit takes the time that the answer itself needs off the client's patience. It reports
// false where nothing is left: not even a start at once would answer in time.
func (l *Limits) Fit(inference time.Duration) bool {
	if l.Patience == 0 {
		return true
	}
	l.Patience -= inference
	l.Deadline = min(l.Deadline, l.Patience)
	return l.Patience > 0
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

// Door is the longest predicted wait that is worth a place in the queue: what the
// first token's limit leaves after the engine's own time to first token. A client
// that names a start timeout is willing to wait that long, and so is who has relief.
func (l *Limits) Door(firstToken time.Duration) time.Duration {
	if l.DeadlineNamed || l.Relieved {
		return l.Deadline
	}
	return min(max(l.TTFT-firstToken, leastStart), l.Deadline)
}

// Label makes a client's x-request-id safe to echo and log: visible ASCII without
// quotes, at most maxLabel bytes. Empty where nothing is left.
func Label(id string) string {
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

// Traceparent returns a W3C version 00 trace context, or "" for anything else.
func Traceparent(s string) string {
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

// Cut shortens a client's value for an error text.
func Cut(s string) string { return s[:min(len(s), 40)] }

// reliefTimes is how many times longer a request may wait whose tier has relief: its
// backlog is long, and it goes on.
const reliefTimes = 4

// Relieve grants a request of a tier that has relief a longer wait, unless it says
// itself how long it wants to.
func (l *Limits) Relieve(most time.Duration) {
	if l.DeadlineNamed {
		return
	}
	l.Deadline = min(reliefTimes*l.Deadline, most)
	if l.Patience > 0 {
		l.Deadline = min(l.Deadline, l.Patience)
	}
	l.Relieved = true
	if !l.TTFTNamed {
		l.TTFT = max(l.TTFT, l.Deadline) // it is in time until then
	}
}

// ParseWish reads the header that says whether the request may be downgraded.
// wrong is for the client whose header says neither.
func ParseWish(h http.Header) (w policy.Wish, wrong string) {
	value := strings.TrimSpace(h.Get("X-Penstock-Downgrade"))
	if value == "" {
		return policy.AsTenant, ""
	}
	switch yes, err := strconv.ParseBool(strings.ToLower(value)); {
	case err != nil:
		return policy.AsTenant, fmt.Sprintf("The header x-penstock-downgrade is %q. Send true or false.", Cut(value))
	case yes:
		return policy.MayDowngrade, ""
	}
	return policy.MayNotDowngrade, ""
}
