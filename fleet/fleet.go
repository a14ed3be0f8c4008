// Package fleet is what agents tell each other and the gateways about their
// engines: one row each, how a row travels (wire.go), the table that keeps the
// newest of every owner (table.go), and the arithmetic on rows. Pure: no IO, no
// clock, no lock.
package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"penstock/reason"
)

const (
	// StaleAfter is the age from which a row does not count.
	StaleAfter = time.Second
	// GoneAfter is the age from which a row is forgotten.
	GoneAfter = time.Minute
	// MaxModels is how many models a row names. Of what an engine serves beyond that
	// the rows say nothing, and gateways go by the engine directory.
	MaxModels = 8
)

// Row is one engine as its agent sees it. Only its owner writes it. One version
// (Engine, Incarnation, Seq) has one content.
type Row struct {
	Engine      uint64 // whose row this is: ID of the agent's node name
	Node        string // the node name, for people; at most MaxNode bytes of it travel
	Incarnation uint64 // of the owner's process; stamped by its Table
	Seq         uint64 // counts the owner's rows; stamped by its Table
	Models      [MaxModels]uint64
	Pool        string        // hardware class; at most MaxPool bytes of it travel
	State       reason.Reason // OK, Stale, or why it takes no work: one of the states in wire.go
	Running     int
	Waiting     int
	KV          float64       // usage 0..1
	Step        time.Duration // 0 = not known
	Freeness    int           // KV tokens a new request may still take
	DrainRate   float64       // expected tokens started per second while work waits; 0 = not known
	FirstToken  time.Duration // from start to first token, mean plus two deviations
	Start       time.Duration // how long a request that comes now would wait; 0 = it starts at once, or not known
	Relief      uint16        // tiers that have relief, 1 << their place in the fleet's configuration
	Policy      uint32        // the policy its process goes by: Policy of its hash; 0 = none
	Gateway     bool          // it is a gateway's, which has no engine: of the rest only Node, State and At are set
	At          time.Time     // when the owner wrote it, on the reader's clock
}

// ID is the identity of the engine whose agent has this node name. It is never 0.
func ID(node string) uint64 { return max(xxhash.Sum64String(node), 1) }

// Policy is the hash of a policy, hex digits, as a row holds it: its first 8, and 0 for
// none. PolicyText is what people are shown of it.
func Policy(hash string) uint32 {
	if len(hash) < 8 {
		return 0
	}
	n, err := strconv.ParseUint(hash[:8], 16, 32)
	if err != nil {
		return 0
	}
	return max(uint32(n), 1)
}

// PolicyText is "none", or the 8 hex digits that Policy kept.
func PolicyText(policy uint32) string {
	if policy == 0 {
		return "none"
	}
	return fmt.Sprintf("%08x", policy)
}

// Models are the first MaxModels of names, as a row holds them.
func Models(names ...string) (hashes [MaxModels]uint64) {
	for i, name := range names[:min(len(names), MaxModels)] {
		hashes[i] = hash(name)
	}
	return hashes
}

// hash of a model's name: 100 models clash with a probability under 1e-15. 0 ends
// the list in a row.
func hash(model string) uint64 { return max(xxhash.Sum64String(model), 1) }

// Serves reports whether the row's engine can take work for model now.
func (r *Row) Serves(model string, now time.Time) bool { return r.serves(hash(model), now) }

func (r *Row) serves(model uint64, now time.Time) bool {
	return (r.State == reason.OK || r.State == reason.Stale) && r.counts(model, now)
}

func (r *Row) counts(model uint64, now time.Time) bool {
	return now.Sub(r.At) <= StaleAfter && slices.Contains(r.Models[:], model)
}

// Known reports whether a row that counts speaks of an engine with model, whatever
// its state: then the rows are the truth, and older knowledge is not.
func Known(rows []Row, model string, now time.Time) bool {
	m := hash(model)
	for i := range rows {
		if rows[i].counts(m, now) {
			return true
		}
	}
	return false
}

// Drain sums, over the rows that serve model now, how fast they take work. An
// engine whose own rate is not known yet counts as the mean of the others.
// firstToken is the shortest time to first token among them.
func Drain(rows []Row, model string, now time.Time) (engines int, tokensPerSecond float64, firstToken time.Duration) {
	m, known := hash(model), 0
	for i := range rows {
		if !rows[i].serves(m, now) {
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

// Step is the shortest time of a step, which is a token of each answer, on an engine
// that serves model now; 0 = none says it.
func Step(rows []Row, model string, now time.Time) (step time.Duration) {
	m := hash(model)
	for i := range rows {
		if s := rows[i].Step; s > 0 && rows[i].serves(m, now) && (step == 0 || s < step) {
			step = s
		}
	}
	return step
}

// Relief has a bit for each tier that has relief on an engine that serves model now.
func Relief(rows []Row, model string, now time.Time) (tiers uint16) {
	m := hash(model)
	for i := range rows {
		if rows[i].serves(m, now) {
			tiers |= rows[i].Relief
		}
	}
	return tiers
}
