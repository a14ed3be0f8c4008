// Package quota is the arithmetic of limits: leaky buckets and fixed windows of tokens
// and of requests, looked at and taken from together or not at all. Pure: the caller
// passes now, and calls a Book from one goroutine at a time. registry/memory keeps one;
// registry/redis does the same arithmetic in its scripts, and a test holds it to the
// answers of a Book. DESIGN.md has the rules.
package quota

import (
	"errors"
	"fmt"
	"time"
)

const (
	// MaxLimits bounds the limits one request is held to.
	MaxLimits = 8
	// MaxBucket bounds a bucket's name in bytes.
	MaxBucket = 1024
	// Burst is how much of its rate an idle bucket takes at once.
	Burst = 50 * time.Second
	// Idle is how long an unused bucket is remembered; one in debt until it is paid.
	Idle = 10 * time.Minute
	// MaxWait is the longest wait for room that a gateway sits out for its client.
	MaxWait = 8 * time.Second
	// Day is the window from which on a limit is a budget: who has spent it is not told
	// to come back.
	Day = 24 * time.Hour
	// Slack of a token is forgiven: what rounding adds up to.
	Slack = 0.01

	// maxAmount keeps the arithmetic exact in a float64.
	maxAmount = 1 << 50
)

// Unit is what a limit counts.
type Unit uint8

// Units.
const (
	Tokens   Unit = iota // prompt and output
	Requests             // one each; never given back
)

// String is the unit's name in headers and texts.
func (u Unit) String() string {
	if u == Requests {
		return "requests"
	}
	return "tokens"
}

// Scopes, as refusals name them.
const (
	Key    = "key"
	Tenant = "tenant"
	Model  = "model" // of one tenant
	Tier   = "tier"
)

// Limit is one that a request is held to. Its zero Window makes a leaky bucket that
// leaks Amount per Per and holds Burst of that; else what is taken counts until the
// window of length Per, counted from the Unix epoch, ends.
type Limit struct {
	Scope  string // whose it is, for the refusal
	Bucket string // names who shares it, with the scope; no two limits of a request share one
	Unit   Unit
	Amount int64
	Per    time.Duration // whole milliseconds
	Window bool

	// Own is a slice of a leaky limit, per Per, that Slice has for itself: within it the
	// request needs no room in Bucket, where it counts all the same, so that the others
	// give way. Beyond it the slice borrows what Bucket has left. 0 = none.
	Own   int64
	Slice string // names it
}

// Budget says that who has spent it is not told to come back.
func (l *Limit) Budget() bool { return l.Window && l.Per >= Day }

// Validate says what is wrong and the fix.
func (l *Limit) Validate() error {
	switch {
	case l.Bucket == "" || len(l.Bucket) > MaxBucket:
		return fmt.Errorf("quota: the bucket's name has %d bytes; give it 1..%d", len(l.Bucket), MaxBucket)
	case l.Amount < 1 || l.Amount > maxAmount:
		return fmt.Errorf("quota: amount is %d; set it to 1..%d, or leave the limit out", l.Amount, int64(maxAmount))
	case l.Per < time.Millisecond || l.Per > 366*Day || l.Per%time.Millisecond != 0:
		return fmt.Errorf("quota: per is %s; set it to whole milliseconds, at most 366 days", l.Per)
	case l.Own < 0 || l.Own > l.Amount:
		return fmt.Errorf("quota: the slice is %d of %d; set it to 0..%d", l.Own, l.Amount, l.Amount)
	case l.Own > 0 && (l.Window || l.Slice == "" || len(l.Slice) > MaxBucket):
		return errors.New("quota: a slice needs a name of its own and a limit that is no window")
	}
	return nil
}

// Check validates all limits of one request.
func Check(limits []Limit) error {
	if len(limits) > MaxLimits {
		return fmt.Errorf("quota: %d limits; give at most %d", len(limits), MaxLimits)
	}
	for i := range limits {
		if err := limits[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

// cost is what a request of that many tokens takes from l.
func (l *Limit) cost(tokens int) float64 {
	if l.Unit == Requests {
		return 1
	}
	return float64(max(tokens, 1))
}

// Usage is what a request has really used. Known false: as much as was reserved.
type Usage struct {
	Prompt, Output int // tokens, over all sequences
	Known          bool
}

// Tokens is the sum, or -1 where it is not known.
func (u Usage) Tokens() int {
	if !u.Known {
		return -1
	}
	return max(u.Prompt, 0) + max(u.Output, 0)
}

// Room is what one limit has left.
type Room struct {
	Remaining int64
	Reset     time.Duration // until all of it is there again
}

// Verdict is the answer about one request. The zero Verdict is of one without limits.
type Verdict struct {
	Refused bool
	Tripped int           // the limit with the longest wait
	Wait    time.Duration // until all have room, 1 ms at least; 0 if not refused
	Rooms   [MaxLimits]Room
}

// Tightest is the limit of unit with least left, -1 = none.
func (v *Verdict) Tightest(limits []Limit, unit Unit) int {
	least := -1
	for i := range min(len(limits), MaxLimits) {
		if limits[i].Unit == unit && (least < 0 || v.Rooms[i].Remaining < v.Rooms[least].Remaining) {
			least = i
		}
	}
	return least
}

// Totals are tokens since the start: reserved by requests let in, then of those settled
// as used, or refunded. What a request used beyond its reservation is in settled alone.
type Totals struct{ Reserved, Settled, Refunded int64 }

// Settle counts the end of a reservation; used below 0 is as much as was reserved.
func (t *Totals) Settle(reserved, used int) {
	if used < 0 {
		used = reserved
	}
	t.Settled += int64(used)
	t.Refunded += int64(max(reserved-used, 0))
}
