// Package lanes is which dimensions make lanes, and what each lane may hold: the first
// pattern that fits a lane says, else the default.
package lanes

import (
	"penstock/lane"
	"penstock/policy/glob"
)

// Limits is what one lane may; 0 = not limited.
type Limits struct {
	Concurrency     int     `json:"concurrency"`       // requests that run at once, on each engine
	StartsPerSecond float64 `json:"starts_per_second"` // of all engines together
	SendsPerSecond  float64 `json:"sends_per_second"`  // of one gateway; above: refused
	MaxRequests     int     `json:"max_requests"`      // outstanding, waiting and running; above: refused
	MaxBytes        int64   `json:"max_bytes"`         // of their bodies
	Width           int     `json:"width"`             // shards in a broker: so many may be on their way to engines at once
}

// Lanes is the whole of it. Immutable; the zero value tells lanes apart by everything
// and limits none.
type Lanes struct {
	NoType, NoTenant bool // dimensions that do not make lanes

	patterns []limited
	rest     Limits
}

type limited struct {
	Pattern
	limits Limits
}

// Pattern is which lanes something is for: each part a pattern, "" = any.
type Pattern struct {
	Tier   string `yaml:"tier"`
	Type   string `yaml:"type"`
	Model  string `yaml:"model"`
	Pool   string `yaml:"pool"`
	Tenant string `yaml:"tenant"`
}

// Fits reports whether it is for the lane k.
func (p *Pattern) Fits(k lane.Key) bool {
	return glob.Match(p.Tier, k.Tier) && glob.Match(p.Type, k.Type) && glob.Match(p.Model, k.Model) && glob.Match(p.Pool, k.Pool) && glob.Match(p.Tenant, k.Tenant)
}

// Of is what the first pattern that fits says, else the default.
func (l *Lanes) Of(k lane.Key) Limits {
	for i := range l.patterns {
		if p := &l.patterns[i]; p.Fits(k) {
			return p.limits
		}
	}
	return l.rest
}

// Permits is how many requests of a tier and model may run at once on one engine, where
// neither type nor tenant makes lanes, so that they share one (and those of each pool
// another); 0 = not limited, or each lane apart.
func (l *Lanes) Permits(tier, model string) int {
	if !l.NoType || !l.NoTenant {
		return 0
	}
	return l.Of(lane.Key{Tier: tier, Model: model}).Concurrency
}
