// Package quotas is what a policy's file says about quotas: limits as they are written, and
// made ready for requests to be held to.
package quotas

import (
	"maps"
	"slices"
	"time"

	"penstock/policy/document"
	"penstock/policy/glob"
	"penstock/quota"
)

// File is written in several places; a zero number is no limit.
type File struct {
	Requests int          `yaml:"requests-per-minute"`
	Tokens   int          `yaml:"tokens-per-minute"` // prompt and output
	Windows  []fileWindow `yaml:"windows"`
}

// fileWindow is an amount per fixed stretch of time; one of a day or more is a budget.
type fileWindow struct {
	Requests int           `yaml:"requests"`
	Tokens   int           `yaml:"tokens"`
	Per      time.Duration `yaml:"per"`
}

// FileTenant is what a tenant's entry says.
type FileTenant struct {
	Quota      File            `yaml:"quota"`       // of all its requests
	KeyQuota   File            `yaml:"key-quota"`   // of each of its keys
	ModelQuota map[string]File `yaml:"model-quota"` // by pattern
}

// Tenant is the limits of one entry; the zero value has none. Immutable.
type Tenant struct {
	entry  string // its name
	own    []quota.Limit
	perKey []quota.Limit // their Bucket is the key's
	models []modelQuota  // by pattern; the first that matches
}

type modelQuota struct {
	pattern string
	limits  []quota.Limit
}

// Limits appends to dst those of a request for model, which came with a key ("" = with
// none) of the tenant called name: where that has no entry and is held to another's,
// it has buckets of its own.
func (t *Tenant) Limits(dst []quota.Limit, name, key, model string) []quota.Limit {
	for _, l := range t.own {
		l.Bucket = name
		dst = append(dst, l)
	}
	if key != "" {
		for _, l := range t.perKey {
			l.Bucket = key
			dst = append(dst, l)
		}
	}
	for i := range t.models {
		if m := &t.models[i]; glob.Match(m.pattern, model) {
			for _, l := range m.limits {
				if name != t.entry {
					l.Bucket = name + l.Bucket[len(t.entry):]
				}
				dst = append(dst, l)
			}
			break
		}
	}
	return dst
}

// Shared is the limits of all tenants together, and what the tiers have of them for
// themselves. Immutable.
type Shared struct {
	limits []quota.Limit
	slices []Slice
}

// Slice is how many of the shared tokens per minute a tier has for itself.
type Slice struct {
	Tier   string
	Tokens int
}

// Limits appends to dst those of a request in the tier at place tier.
func (s *Shared) Limits(dst []quota.Limit, tier int) []quota.Limit {
	for _, l := range s.limits {
		if own := s.slices[tier]; own.Tokens > 0 && l.Unit == quota.Tokens && !l.Window {
			l.Own, l.Slice = int64(own.Tokens), own.Tier
		}
		dst = append(dst, l)
	}
	return dst
}

// read makes the limits of one place in the file.
func read(d *document.Document, at []any, f *File, scope, bucket string) (limits []quota.Limit) {
	add := func(key string, unit quota.Unit, amount int, per time.Duration, window bool) {
		if amount == 0 {
			return
		}
		l := quota.Limit{Scope: scope, Bucket: bucket, Unit: unit, Amount: int64(amount), Per: per, Window: window}
		if err := l.Validate(); err != nil {
			d.Wrong(append(at, key), "%s", err)
		}
		limits = append(limits, l)
	}
	add("tokens-per-minute", quota.Tokens, f.Tokens, time.Minute, false)
	add("requests-per-minute", quota.Requests, f.Requests, time.Minute, false)
	for i, w := range f.Windows {
		if (w.Requests == 0) == (w.Tokens == 0) || w.Per == 0 {
			d.Wrong(append(at, "windows", i), "write one of tokens and requests, and per, such as {tokens: 1000000, per: 24h}")
		}
		if slices.ContainsFunc(f.Windows[:i], func(o fileWindow) bool { return o.Per == w.Per && (o.Tokens == 0) == (w.Tokens == 0) }) {
			d.Wrong(append(at, "windows", i), "a second window of %v of the same kind; write the lower number alone", w.Per)
		}
		add("windows", quota.Tokens, w.Tokens, w.Per, true)
		add("windows", quota.Requests, w.Requests, w.Per, true)
	}
	return limits
}

// ReadTenant makes the limits of the entry of that name, which stands at a place of the
// file. What is wrong goes to d, a request that would be held to more than
// quota.MaxLimits included, s among them.
func (s *Shared) ReadTenant(d *document.Document, at []any, name string, f *FileTenant) Tenant {
	t := Tenant{
		entry: name, own: read(d, append(at, "quota"), &f.Quota, quota.Tenant, name),
		perKey: read(d, append(at, "key-quota"), &f.KeyQuota, quota.Key, "key"),
	}
	if !d.Most(append(at, "model-quota"), "models", len(f.ModelQuota), document.MaxList) {
		return t
	}
	most := 0
	for _, pattern := range slices.Sorted(maps.Keys(f.ModelQuota)) {
		one := f.ModelQuota[pattern]
		at := append(at, "model-quota", pattern)
		d.Word(at, pattern, document.MaxWord)
		limits := read(d, at, &one, quota.Model, name+"\x00"+pattern)
		t.models = append(t.models, modelQuota{pattern, limits})
		most = max(most, len(limits))
	}
	slices.SortStableFunc(t.models, func(a, b modelQuota) int { return len(b.pattern) - len(a.pattern) }) // the most exact first
	if most += len(t.own) + len(t.perKey) + len(s.limits); most > quota.MaxLimits {
		d.Wrong(at, "one request of %q would be held to %d limits; write at most %d, those of quota for all tenants included", name, most, quota.MaxLimits)
	}
	return t
}

// ReadShared makes the limits of all tenants together; slices are those of the tiers, in
// order, 0 where one says none. What is wrong goes to d.
func ReadShared(d *document.Document, f *File, slices []Slice) Shared {
	s := Shared{read(d, []any{"quota"}, f, quota.Tier, "all"), slices}
	sum := 0
	for i, own := range slices {
		at := []any{"tiers", i, "slice"}
		d.Number(at, float64(own.Tokens), 1e12)
		if sum += own.Tokens; own.Tokens != 0 && sum > f.Tokens {
			d.Wrong(at, "the slices add up to %d tokens per minute; quota has tokens-per-minute: %d for all tenants, write more there or less here", sum, f.Tokens)
		}
	}
	d.Most([]any{"quota"}, "limits", len(s.limits), quota.MaxLimits)
	return s
}
