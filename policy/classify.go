package policy

import (
	"bytes"
	"math"
	"strings"

	"github.com/cespare/xxhash/v2"

	"penstock/lane"
	"penstock/policy/glob"
	"penstock/reason"
)

// Request is what the rules look at. Everything is the caller's; nothing is kept.
type Request struct {
	ID      string // random per request: weights go by it
	Tenant  *Tenant
	Path    string // of the API
	Type    string // "chat", "completion", "embedding"
	Model   string // as the client names it
	Stream  bool
	Prompt  int                 // estimated tokens
	Max     int                 // max_tokens; 0 = not limited
	Headers map[string][]string // by canonical name, such as http.Header

	Tools, Images bool
	SystemBytes   int // of the system prompt
	Priority      int // the body's: lower goes first, 0 = none said
	ServiceTier   string
	Body          []byte // for keywords
}

// Rule puts requests into lanes. The first that matches holds; what it leaves empty is
// as without it.
type Rule struct {
	Name              string
	Type, Model, Pool string
	tier              int // place; -1 = not said

	tenant, model, path, serviceTier    []string // patterns; none = any
	headers                             []header // all of them
	keywords                            []keyword
	stream, tools, images               *bool
	prompt, maxTokens, system, priority bounds
}

var noRule = Rule{tier: -1}

type header struct{ name, pattern string }

type keyword struct{ plain, ascii []byte }

type bounds struct{ low, high int }

var everything = bounds{math.MinInt, math.MaxInt}

func (b bounds) hold(n int) bool { return b.low <= n && n <= b.high }

// Target is a model that an alias stands for.
type Target struct {
	Model  string
	weight int
	upTo   int // prompt tokens
}

// By is who chose a tier or a model.
type By uint8

// The ways to a tier, and from ByRule and ByAlias on to a model.
const (
	ByDefault By = iota
	ByTenant
	ByRule
	ByHeader      // x-penstock-tier
	ByObjective   // x-gateway-inference-objective
	ByServiceTier // of the body
	ByPriority    // of the body
	ByAlias       // one model behind it
	ByWeight
	ByPrompt
	ByClient
	ByReroute
	ByDowngrade
)

var byNames = [...]string{
	"the default tier", "the tenant's tier", "the rule", "the header x-penstock-tier", "the header x-gateway-inference-objective",
	"service_tier of the body", "priority of the body", "an alias", "an alias, by weight", "an alias, by prompt length", "the client",
	"a reroute", "a downgrade",
}

func (b By) String() string {
	if int(b) >= len(byNames) {
		return "unknown"
	}
	return byNames[b]
}

// Decision is what Classify says.
type Decision struct {
	Reason   reason.Reason // OK; BadRequest: x-penstock-tier is not known; Forbidden: the tenant may not use the model
	Tier     int           // place
	Lane     lane.Key
	Rule     int // place of the rule that holds; -1 = none matched
	TierBy   By
	Capped   bool // the tier is the tenant's, who asked for a higher one
	ModelBy  By
	FairedBy bool // the lane is one of several of its tenant, by x-gateway-inference-fairness-id
}

// maxFairnessID is how much of the header makes lanes, in bytes.
const maxFairnessID = 64

// Classify says which lane a request belongs to, and why. With ten rules it takes about
// 160 ns, keywords apart; a fairness id costs an allocation.
func (p *Policy) Classify(r *Request) Decision {
	d := Decision{Reason: reason.OK, Rule: -1}
	rule := &noRule
	for i := range p.rules {
		if p.rules[i].misses(r) == "" {
			rule, d.Rule = &p.rules[i], i
			break
		}
	}
	d.Lane = lane.Key{Type: r.Type, Pool: rule.Pool, Tenant: r.Tenant.Name}
	if rule.Type != "" {
		d.Lane.Type = rule.Type
	}
	if d.Tier, d.TierBy = p.tier(r, rule.tier); d.Tier < 0 {
		d.Reason = reason.BadRequest
		return d
	}
	if d.Tier < r.Tenant.Tier {
		d.Tier, d.Capped = r.Tenant.Tier, true
	}
	d.Lane.Tier = p.Tiers[d.Tier].Name
	asked := r.Model
	d.ModelBy = ByClient
	if rule.Model != "" {
		asked, d.ModelBy = rule.Model, ByRule
	}
	d.Lane.Model = asked
	if targets := p.aliases[asked]; len(targets) > 0 {
		d.Lane.Model, d.ModelBy = target(targets, r)
	}
	if !r.Tenant.May(r.Model, d.Lane.Model) {
		d.Reason = reason.Forbidden
	}
	if p.lanes.NoType {
		d.Lane.Type = ""
	}
	if p.lanes.NoTenant {
		d.Lane.Tenant = ""
	} else if id := first(r.Headers, "X-Gateway-Inference-Fairness-Id"); id != "" && r.Tenant.TrustsFairnessID {
		d.Lane.Tenant, d.FairedBy = r.Tenant.Name+"/"+id[:min(len(id), maxFairnessID)], true
	}
	return d
}

// misses is the first condition of a rule that does not hold, "" = all do. What costs
// most is last.
func (u *Rule) misses(r *Request) string {
	most := r.Max
	if most == 0 {
		most = math.MaxInt // not limited
	}
	switch {
	case u.stream != nil && *u.stream != r.Stream:
		return "stream"
	case u.tools != nil && *u.tools != r.Tools:
		return "tools"
	case u.images != nil && *u.images != r.Images:
		return "images"
	case !u.prompt.hold(r.Prompt):
		return "prompt-tokens"
	case !u.maxTokens.hold(most):
		return "max-tokens"
	case !u.system.hold(r.SystemBytes):
		return "system-bytes"
	case !u.priority.hold(r.Priority):
		return "priority"
	case len(u.tenant) > 0 && !glob.Any(u.tenant, r.Tenant.Name):
		return "tenant"
	case len(u.model) > 0 && !glob.Any(u.model, r.Model):
		return "model"
	case len(u.path) > 0 && !glob.Any(u.path, r.Path):
		return "path"
	case len(u.serviceTier) > 0 && !glob.Any(u.serviceTier, r.ServiceTier):
		return "service-tier"
	}
	for i := range u.headers {
		if value := r.Headers[u.headers[i].name]; len(value) == 0 || !glob.Match(u.headers[i].pattern, value[0]) {
			return "headers"
		}
	}
	if len(u.keywords) > 0 && !u.finds(r.Body) {
		return "keyword"
	}
	return ""
}

// searched is how much of a body's start and of its end keywords are looked for in:
// a search takes about a quarter of a nanosecond per byte.
const searched = 64 << 10

// finds reports whether one of the keywords is in the body.
func (u *Rule) finds(body []byte) bool {
	if len(body) > 2*searched {
		return u.finds(body[:searched]) || u.finds(body[len(body)-searched:])
	}
	for i := range u.keywords {
		k := &u.keywords[i]
		if bytes.Contains(body, k.plain) || len(k.ascii) != len(k.plain) && bytes.Contains(body, k.ascii) {
			return true
		}
	}
	return false
}

// tier is the place of the tier that a request gets but for its tenant's cap; -1 =
// x-penstock-tier names none there is.
func (p *Policy) tier(r *Request, ruled int) (int, By) {
	if named := strings.TrimSpace(first(r.Headers, "X-Penstock-Tier")); named != "" && p.tiered {
		if i := p.find(named); i < 0 || ruled < 0 {
			return i, ByHeader
		}
	}
	if ruled >= 0 {
		return ruled, ByRule
	}
	if i := p.find(strings.TrimSpace(first(r.Headers, "X-Gateway-Inference-Objective"))); i >= 0 {
		return i, ByObjective
	}
	if i := p.find(r.ServiceTier); i >= 0 && r.ServiceTier != "default" { // OpenAI's word for nothing special
		return i, ByServiceTier
	}
	switch r.ServiceTier { // and those for more and for less
	case "priority":
		return r.Tenant.Tier, ByServiceTier
	case "flex":
		return len(p.Tiers) - 1, ByServiceTier
	}
	if r.Priority != 0 {
		step := min(max(r.Priority, -len(p.Tiers)), len(p.Tiers))
		return min(max(r.Tenant.Asks+step, 0), len(p.Tiers)-1), ByPriority
	}
	if r.Tenant.Asks != p.defaultTier {
		return r.Tenant.Asks, ByTenant
	}
	return r.Tenant.Asks, ByDefault
}

// find is the place of a tier by name, -1 = there is none.
func (p *Policy) find(name string) int {
	for i := range p.Tiers {
		if p.Tiers[i].Name == name {
			return i
		}
	}
	return -1
}

// target is the first model whose prompt bound holds, else one of those without, by
// weight: the same id gets the same.
func target(all []Target, r *Request) (string, By) {
	total, open, last := uint64(0), 0, 0
	for i := range all {
		if all[i].upTo > 0 && r.Prompt <= all[i].upTo {
			return all[i].Model, ByPrompt
		}
		if all[i].weight > 0 {
			total += uint64(all[i].weight)
			open, last = open+1, i
		}
	}
	switch {
	case open == 1 && len(all) == 1:
		return all[last].Model, ByAlias
	case open == 1:
		return all[last].Model, ByPrompt
	}
	at := xxhash.Sum64String(r.ID) % max(total, 1)
	for i := range all[:last] {
		w := uint64(all[i].weight)
		if at < w {
			return all[i].Model, ByWeight
		}
		at -= w
	}
	return all[last].Model, ByWeight
}

func first(headers map[string][]string, name string) string {
	if values := headers[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// RuleName is the name of a rule by its place; "" for none.
func (p *Policy) RuleName(i int) string {
	if i < 0 || i >= len(p.rules) {
		return ""
	}
	return p.rules[i].Name
}

// Tried is a rule that was looked at.
type Tried struct {
	Rule   string `json:"rule"`
	Misses string `json:"misses,omitempty"` // the first condition that does not hold; "" = the rule holds
}

// Explain lists the rules that Classify looks at, in order: the last one holds, or
// none does.
func (p *Policy) Explain(r *Request) (tried []Tried) {
	for i := range p.rules {
		t := Tried{p.rules[i].Name, p.rules[i].misses(r)}
		if tried = append(tried, t); t.Misses == "" {
			break
		}
	}
	return tried
}

// Aliases are the names that stand for the models of targets.
func (p *Policy) Aliases() map[string][]Target { return p.aliases }
