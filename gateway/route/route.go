// Package route decides where a request goes next when its lane did not serve it: to
// another lane by a reroute of the policy, once; into a lower tier where its lane is
// full and its owner allows it, once; or nowhere. It remembers where the request has
// been. A function of values; the gateway acts on it.
package route

import (
	"strings"
	"time"

	"penstock/lane"
	"penstock/policy"
	"penstock/reason"
)

// Move is what is done with a request.
type Move uint8

// The moves.
const (
	Stay      Move = iota // what happened is its outcome
	Reroute               // by a reroute of the policy
	Downgrade             // into a lower tier
)

var moves = [...]string{"stay", "reroute", "downgrade"}

func (m Move) String() string {
	if int(m) >= len(moves) {
		return "unknown"
	}
	return moves[m]
}

// Trip is where a request has been. The zero value is a request on its arrival. One
// request makes at most policy.MaxFilters and two moves, each of which is made once.
type Trip struct {
	left                 []leg
	rerouted, downgraded bool
}

// leg is a lane that the request has left.
type leg struct {
	lane lane.Key
	why  string
}

// Left notes that the request has left a lane, and why.
func (t *Trip) Left(k lane.Key, why string) { t.left = append(t.left, leg{k, why}) }

// Moved reports whether the request has left any lane.
func (t *Trip) Moved() bool { return len(t.left) > 0 }

// Stop is what happened to a request in its lane.
type Stop struct {
	Trouble policy.Trouble
	Class   policy.Decision // the lane
	Request *policy.Request // as it was classified
	Wish    policy.Wish
	Relayed bool          // a byte of an answer has reached the client
	Left    time.Duration // until its start deadline
}

// Next is what is done with the request, and for a move the lane it goes to.
type Next struct {
	Move  Move
	Class policy.Decision
	Name  string // of the reroute
}

// Next decides. A move it returns counts as made. The operator's reroutes go before the
// downgrade that an owner allows.
func (t *Trip) Next(p *policy.Policy, s *Stop) Next {
	if s.Relayed || s.Left <= 0 {
		return Next{Class: s.Class}
	}
	if !t.rerouted {
		if name, to, ok := p.Reroute(s.Class, s.Trouble, s.Request); ok {
			t.rerouted = true
			t.Left(s.Class.Lane, s.Trouble.String())
			return Next{Reroute, to, name}
		}
	}
	full := s.Trouble.Class == policy.Saturated || s.Trouble.Class == policy.LaneFull
	if full && !t.downgraded {
		if to, ok := p.Downgrade(s.Class, s.Request.Tenant, s.Wish); ok {
			t.downgraded = true
			t.Left(s.Class.Lane, s.Trouble.String())
			return Next{Downgrade, to, ""}
		}
	}
	return Next{Class: s.Class}
}

// Trouble is what a reason stands for, status being that of the engine's answer, or 0,
// and tooLong whether that answer is about the length of the prompt. False: another
// lane would not help.
func Trouble(why reason.Reason, status int, tooLong bool) (policy.Trouble, bool) {
	class, known := classes[why]
	switch {
	case known:
		return policy.Trouble{Class: class}, true
	case why != reason.EngineRefused || status < 400 || status > 499:
		return policy.Trouble{}, false
	case tooLong:
		return policy.Trouble{Class: policy.TooLong, Status: status}, true
	}
	return policy.Trouble{Class: policy.OtherStatus, Status: status}, true
}

var classes = map[reason.Reason]policy.Class{
	reason.TooLarge:     policy.TooLong,
	reason.Overloaded:   policy.Saturated,
	reason.LaneFull:     policy.LaneFull,
	reason.NoEngine:     policy.NoEngine,
	reason.UnknownModel: policy.UnknownModel,
	reason.RateLimited:  policy.RateLimited,
	reason.BudgetSpent:  policy.BudgetSpent,
	reason.TriesUsed:    policy.TriesUsed,
	reason.EngineDown:   policy.TriesUsed,
	reason.EngineBusy:   policy.TriesUsed,
}

// maxShown is how much of a name String shows, in bytes.
const maxShown = 64

// String is the way of the request whose last lane is now: "tier/type/model/pool why" of
// each lane it left, then the last one, comma-separated; "" where it left none. It is a
// header's value, a log attribute and in /debug/state; the tenant is not in it.
func (t *Trip) String(now lane.Key) string {
	if len(t.left) == 0 {
		return ""
	}
	var b strings.Builder
	for i := range t.left {
		name(&b, t.left[i].lane)
		b.WriteByte(' ')
		word(&b, t.left[i].why)
		b.WriteString(", ")
	}
	name(&b, now)
	return b.String()
}

func name(b *strings.Builder, k lane.Key) {
	for i, part := range [...]string{k.Tier, k.Type, k.Model, k.Pool} {
		if i > 0 && (i < 3 || part != "") {
			b.WriteByte('/')
		}
		word(b, part)
	}
}

// word writes what of s may stand in a header's list.
func word(b *strings.Builder, s string) {
	for _, c := range []byte(s[:min(len(s), maxShown)]) {
		if c <= ' ' || c >= 0x7f || c == ',' || c == '"' || c == '\\' {
			c = '_'
		}
		b.WriteByte(c)
	}
}
