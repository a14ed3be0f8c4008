// Package policy is who may do what: tenants and their keys, tiers, the rules that
// put a request into a lane, and what a lane may hold, as one immutable value. It is
// made from a YAML file (Parse), and swapped as a whole when the file changes
// (policy/source). Pure: safe for concurrent use, since nothing changes it.
package policy

import (
	"maps"
	"slices"
	"time"

	"penstock/lane"
	"penstock/policy/apikey"
	"penstock/policy/glob"
	"penstock/policy/lanes"
	"penstock/policy/quotas"
	"penstock/quota"
	"penstock/scheduler"
)

// Bounds of a policy.
const (
	MaxBytes    = 1 << 20 // of a file
	MaxTenants  = 4096
	MaxKeys     = 64 // of one tenant
	MaxRules    = 256
	MaxAliases  = 256
	MaxTargets  = 16 // of one alias
	MaxReroutes = 64
	MaxFilters  = 4 // each is a round trip through an engine
	maxTierName = 32
)

// Anybody is the tenant of requests where there are no keys, and the entry of tenants
// that holds for those whose keys are elsewhere and that have none of their own.
const Anybody = "default"

// Policy is the whole of it. Callers change nothing in it. Make it with Parse, or with
// Default.
type Policy struct {
	Hash  string // of the file, 16 hex digits; "" = from flags
	Tiers []Tier // first goes first; at least one

	// Missing: it stands in for one that could not be read yet. Who may do what is not
	// known, so a gateway lets nobody in.
	Missing bool

	tiered      bool // it names tiers
	defaultTier int  // place of the tier of requests that name none
	tenants     map[string]*Tenant
	anybody     *Tenant      // a tenant without an entry of its own; its name is not to be used
	keys        *apikey.Keys // nil = no authentication
	own         bool         // the keys are in the file
	rules       []Rule
	aliases     map[string][]Target
	filters     []Filter
	reroutes    []Reroute
	lanes       lanes.Lanes
	shared      quotas.Shared
}

// Tier is a class of requests: scheduler.Tier.
type Tier = scheduler.Tier

// Tenant is who pays, and what it may.
type Tenant struct {
	Name        string
	Tier        int           // place of its tier: the highest it gets, and what it gets where it asks for none
	Asks        int           // place of the tier where it asks for none; Tier but where nobody has tenants
	Models      []string      // patterns of the models it may use; none = all
	Deadline    time.Duration // start deadline of its requests that name none; 0 = the gateway's
	MaxDeadline time.Duration // longest start deadline they may name; 0 = the gateway's

	// TrustsFairnessID: it sends for others, who are told apart by the header
	// x-gateway-inference-fairness-id; each gets lanes of its own.
	TrustsFairnessID bool

	Key        string // names the key it came with, without giving it away; "" = it came without
	quotas     quotas.Tenant
	downgrade  bool  // its requests may be put into the tier below
	downgrades []int // or into the first of these below theirs; places, in order
}

// Default is the policy where there is no file: tiers as flags give them (none = one,
// "default"), nobody known apart, all models. defaultTier is "" for the last.
func Default(tiers []Tier, defaultTier string) *Policy {
	p := &Policy{Tiers: tiers, tiered: len(tiers) > 0, tenants: map[string]*Tenant{}}
	if len(tiers) == 0 {
		p.Tiers = []Tier{{Name: "default", Ceiling: 1}}
	}
	p.defaultTier = scheduler.Rank(p.Tiers, defaultTier)
	p.anybody = &Tenant{Name: Anybody, Asks: p.defaultTier}
	return p
}

// WithKeys is p with keys that are not in its file. OwnKeys says whether it has any.
func (p *Policy) WithKeys(keys *apikey.Keys) *Policy {
	q := *p
	q.keys = keys
	return &q
}

// OwnKeys reports whether the file has keys of tenants.
func (p *Policy) OwnKeys() bool { return p.own }

// Authenticates reports whether a request needs a key.
func (p *Policy) Authenticates() bool { return p.keys != nil }

// Who is the tenant of an Authorization header; false: its key is not known.
func (p *Policy) Who(authorization string) (Tenant, bool) {
	if p.keys == nil {
		return p.named(Anybody), true
	}
	found, ok := p.keys.Bearer(authorization)
	if !ok {
		return Tenant{}, false
	}
	t := p.named(found.Tenant)
	t.Key = found.ID
	return t, true
}

// named is the tenant of that name, as the entry Anybody says where it has none.
func (p *Policy) named(name string) Tenant {
	if t := p.tenants[name]; t != nil {
		return *t
	}
	t := *p.anybody
	t.Name = name
	return t
}

// Tenant is the entry of a tenant, by name, and whether the file has one.
func (p *Policy) Tenant(name string) (Tenant, bool) {
	_, known := p.tenants[name]
	return p.named(name), known
}

// Tenants are the names of the file's tenants, in order.
func (p *Policy) Tenants() []string { return slices.Sorted(maps.Keys(p.tenants)) }

// KeysOf is how many keys a tenant has.
func (p *Policy) KeysOf(tenant string) int {
	if p.keys == nil {
		return 0
	}
	return p.keys.Of(tenant)
}

// Rules is how many rules there are.
func (p *Policy) Rules() int { return len(p.rules) }

// Rank is the place of a tier; of one that is not known, the last.
func (p *Policy) Rank(tier string) int { return scheduler.Rank(p.Tiers, tier) }

// DefaultTier is the name of the tier of requests that name none.
func (p *Policy) DefaultTier() string { return p.Tiers[p.defaultTier].Name }

// TierNames are those of the tiers, in order.
func (p *Policy) TierNames() []string {
	names := make([]string, len(p.Tiers))
	for i := range p.Tiers {
		names[i] = p.Tiers[i].Name
	}
	return names
}

// May reports whether a tenant may use a model under one of its names.
func (t *Tenant) May(names ...string) bool {
	if len(t.Models) == 0 {
		return true
	}
	return slices.ContainsFunc(names, func(name string) bool { return glob.Any(t.Models, name) })
}

// Limits appends to dst what a request of tenant t for model is held to, in the tier
// at place tier: at most quota.MaxLimits.
func (p *Policy) Limits(dst []quota.Limit, t *Tenant, model string, tier int) []quota.Limit {
	return p.shared.Limits(t.quotas.Limits(dst, t.Name, t.Key, model), tier)
}

// Lane is what the lane k may hold.
func (p *Policy) Lane(k lane.Key) lanes.Limits { return p.lanes.Of(k) }

// Permits is how many requests of a tier and model may run at once on one engine, as far
// as that can be said without their type and tenant; 0 = not limited.
func (p *Policy) Permits(tier, model string) int { return p.lanes.Permits(tier, model) }
