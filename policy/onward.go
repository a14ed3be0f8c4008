package policy

import (
	"slices"
	"strconv"
	"strings"

	"penstock/lane"
	"penstock/policy/glob"
	"penstock/policy/lanes"
)

// Class is a kind of trouble that a lane had with a request.
type Class uint8

// The classes; an engine's status without one is OtherStatus.
const (
	OtherStatus Class = iota // the engine refused with a status, for another reason
	TooLong                  // the prompt is longer than the model can hold, by the engine or its agent
	Saturated                // predicted to start too late
	LaneFull
	NoEngine
	UnknownModel
	RateLimited
	BudgetSpent
	TriesUsed // engines failed before the first byte, each time it was tried
	classes
)

var classNames = [classes]string{
	"engine_status", "context_length_exceeded", "server_is_overloaded", "lane_full", "no_engine", "model_not_found",
	"rate_limit_exceeded", "insufficient_quota", "tries_used",
}

func (c Class) String() string {
	if c >= classes {
		return "unknown"
	}
	return classNames[c]
}

// Classes are all, in order, for labels.
func Classes() []Class {
	all := make([]Class, classes)
	for i := range all {
		all[i] = Class(i)
	}
	return all
}

// Trouble is why a lane did not serve a request.
type Trouble struct {
	Class  Class
	Status int // of the engine's answer, 400 to 499; 0 = it gave none
}

func (t Trouble) String() string {
	if t.Class == OtherStatus {
		return strconv.Itoa(t.Status)
	}
	return t.Class.String()
}

// Reroute is where requests go that a lane did not serve.
type Reroute struct {
	Name string

	from              lanes.Pattern
	classes           [classes]bool
	statuses          []int
	tier              int // place; -1 = stays
	model, pool, kind string
}

// on reports whether it is for that trouble.
func (u *Reroute) on(t Trouble) bool {
	return u.classes[t.Class] && t.Class != OtherStatus || t.Status != 0 && slices.Contains(u.statuses, t.Status)
}

// Reroute is the first that takes a request out of the lane of d for trouble t: its
// name, and the decision for the lane it leads to. False: none does, or it leads to
// where the request is.
func (p *Policy) Reroute(d Decision, t Trouble, r *Request) (name string, to Decision, ok bool) {
	for i := range p.reroutes {
		u := &p.reroutes[i]
		if !u.from.Fits(d.Lane) || !u.on(t) {
			continue
		}
		to = d
		if u.kind != "" {
			to.Lane.Type = u.kind
		}
		if u.model != "" { // its engines may be of another class
			to.Lane.Model, to.ModelBy, to.Lane.Pool = u.model, ByReroute, ""
			if targets := p.aliases[u.model]; len(targets) > 0 {
				to.Lane.Model, _ = target(targets, r)
			}
		}
		if u.pool != "" {
			to.Lane.Pool = u.pool
		}
		if u.tier >= 0 {
			to.Capped = u.tier < r.Tenant.Tier
			to = p.inTier(to, max(u.tier, r.Tenant.Tier), ByReroute)
		}
		return u.Name, to, to.Lane != d.Lane
	}
	return "", d, false
}

func (p *Policy) inTier(d Decision, place int, by By) Decision {
	d.Tier, d.TierBy, d.Lane.Tier = place, by, p.Tiers[place].Name
	return d
}

// Wish is what a request says about being downgraded.
type Wish uint8

// The wishes.
const (
	AsTenant Wish = iota // it says nothing: what its tenant's entry says holds
	MayDowngrade
	MayNotDowngrade
)

// Downgrade is the decision for the next lower tier that a request may be put into
// whose lane is full; false: there is none.
func (p *Policy) Downgrade(d Decision, t *Tenant, w Wish) (to Decision, ok bool) {
	below := d.Tier + 1
	switch {
	case w == MayNotDowngrade || below >= len(p.Tiers):
		return d, false
	case len(t.downgrades) > 0:
		i := slices.IndexFunc(t.downgrades, func(place int) bool { return place >= below })
		if i < 0 {
			return d, false
		}
		below = t.downgrades[i]
	case !t.downgrade && w != MayDowngrade:
		return d, false
	}
	return p.inTier(d, below, ByDowngrade), true
}

// Downgrades are the names of the tiers a tenant's requests may be put into where their
// lane is full; none = they may not.
func (p *Policy) Downgrades(t *Tenant) (names []string) {
	if len(t.downgrades) == 0 && t.downgrade {
		return p.TierNames()[t.Tier+1:]
	}
	for _, place := range t.downgrades {
		names = append(names, p.Tiers[place].Name)
	}
	return names
}

// Filter is a model that reads a request before it goes to its lane, and whose answer
// lets it pass or stops it.
type Filter struct {
	Name      string
	MaxTokens int    // of its answer
	Refusal   string // what the client is told whose request it stops

	model, pool   string
	passes, stops []string // patterns of the answer in lower case; one of both is empty
	when          Rule
}

// Filters are those a request goes through, in order. r is as for Classify.
func (p *Policy) Filters(r *Request) (all []*Filter) {
	for i := range p.filters {
		if p.filters[i].when.misses(r) == "" {
			all = append(all, &p.filters[i])
		}
	}
	return all
}

// FilterType is the type of the lanes of filters.
const FilterType = "filter"

// Lane is the filter's, for a request in the lane of d.
func (f *Filter) Lane(p *Policy, d Decision, r *Request) lane.Key {
	k := d.Lane
	k.Model, k.Pool = f.model, f.pool
	if targets := p.aliases[f.model]; len(targets) > 0 {
		k.Model, _ = target(targets, r)
	}
	if !p.lanes.NoType {
		k.Type = FilterType
	}
	return k
}

// Passes reports whether the filter's answer lets the request pass: answer is in lower
// case, without white space around it.
func (f *Filter) Passes(answer string) bool {
	if len(f.passes) > 0 {
		return answer != "" && glob.Any(f.passes, answer)
	}
	return answer != "" && !glob.Any(f.stops, answer)
}

// Explain says in words which lanes a reroute is for and where it leads.
func (u *Reroute) Explain(p *Policy) (from, on, to string) {
	var words []string
	for c := TooLong; c < classes; c++ {
		if u.classes[c] {
			words = append(words, c.String())
		}
	}
	for _, status := range u.statuses {
		words = append(words, strconv.Itoa(status))
	}
	tier := ""
	if u.tier >= 0 {
		tier = p.Tiers[u.tier].Name
	}
	return parts(u.from.Tier, u.from.Type, u.from.Model, u.from.Pool, u.from.Tenant), strings.Join(words, " "), parts(tier, u.kind, u.model, u.pool, "")
}

// parts are those parts of a lane that are not empty.
func parts(tier, kind, model, pool, tenant string) string {
	var words []string
	for i, value := range [...]string{tier, kind, model, pool, tenant} {
		if value != "" {
			words = append(words, [...]string{"tier", "type", "model", "pool", "tenant"}[i]+" "+value)
		}
	}
	if len(words) == 0 {
		return "any"
	}
	return strings.Join(words, ", ")
}

// Reroutes are all, in order.
func (p *Policy) Reroutes() []Reroute { return p.reroutes }

// AllFilters are those of the file, in order, whatever their conditions.
func (p *Policy) AllFilters() []Filter { return p.filters }

// Explain says in words which model a filter asks, and what its answer does.
func (f *Filter) Explain() (model, answer string) {
	if len(f.passes) > 0 {
		return f.model, "passes with " + strings.Join(f.passes, " ")
	}
	return f.model, "stops with " + strings.Join(f.stops, " ")
}

// Troubles are those that some reroute is for, in the order they are written.
func (p *Policy) Troubles() (all []Trouble) {
	add := func(t Trouble) {
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	for i := range p.reroutes {
		for c := TooLong; c < classes; c++ {
			if p.reroutes[i].classes[c] {
				add(Trouble{Class: c})
			}
		}
		for _, status := range p.reroutes[i].statuses {
			add(Trouble{Status: status})
		}
	}
	return all
}
