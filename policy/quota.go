package policy

import (
	"maps"
	"slices"
	"time"

	"penstock/quota"
)

// fileQuota is written in several places; a zero number is no limit.
type fileQuota struct {
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

// quotas are a tenant's limits, ready to hand out.
type quotas struct {
	own    []quota.Limit
	perKey []quota.Limit // their Bucket is the key's
	models []modelQuota  // by pattern; the first that matches
}

type modelQuota struct {
	pattern string
	limits  []quota.Limit
}

// Limits appends to dst what a request of tenant t for model is held to, in the tier
// at place tier: at most quota.MaxLimits.
func (p *Policy) Limits(dst []quota.Limit, t *Tenant, model string, tier int) []quota.Limit {
	for _, l := range t.quotas.own {
		l.Bucket = t.Name // where the entry is Anybody's, each has its own
		dst = append(dst, l)
	}
	if t.Key != "" {
		for _, l := range t.quotas.perKey {
			l.Bucket = t.Key
			dst = append(dst, l)
		}
	}
	for i := range t.quotas.models {
		if m := &t.quotas.models[i]; match(m.pattern, model) {
			for _, l := range m.limits {
				if t.Name != t.entry {
					l.Bucket = t.Name + l.Bucket[len(t.entry):]
				}
				dst = append(dst, l)
			}
			break
		}
	}
	for _, l := range p.shared {
		if own := p.slices[tier]; own > 0 && l.Unit == quota.Tokens && !l.Window {
			l.Own, l.Slice = int64(own), p.Tiers[tier].Name
		}
		dst = append(dst, l)
	}
	return dst
}

// readQuota makes the limits of one place in the file.
func (d draft) readQuota(at []any, f *fileQuota, scope, bucket string) (limits []quota.Limit) {
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

// readQuotas makes a tenant's.
func (d draft) readQuotas(at []any, name string, f *fileTenant) (q quotas, most int) {
	q.own = d.readQuota(append(at, "quota"), &f.Quota, quota.Tenant, name)
	q.perKey = d.readQuota(append(at, "key-quota"), &f.KeyQuota, quota.Key, "key")
	if len(f.ModelQuota) > maxList {
		d.Wrong(append(at, "model-quota"), "%d models; write at most %d", len(f.ModelQuota), maxList)
		return q, 0
	}
	for _, pattern := range slices.Sorted(maps.Keys(f.ModelQuota)) {
		one := f.ModelQuota[pattern]
		at := append(at, "model-quota", pattern)
		d.word(at, pattern, maxWord)
		limits := d.readQuota(at, &one, quota.Model, name+"\x00"+pattern)
		q.models = append(q.models, modelQuota{pattern, limits})
		most = max(most, len(limits))
	}
	slices.SortStableFunc(q.models, func(a, b modelQuota) int { return len(b.pattern) - len(a.pattern) }) // the most exact first
	return q, most + len(q.own) + len(q.perKey)
}

// readShared makes the limits of all tenants together, and the tiers' slices of them.
func (p *Policy) readShared(d draft, f *file) {
	p.shared = d.readQuota([]any{"quota"}, &f.Quota, quota.Tier, "all")
	p.slices = make([]int, len(p.Tiers))
	sum := 0
	for i := range f.Tiers {
		p.slices[i] = f.Tiers[i].Slice
		at := []any{"tiers", i, "slice"}
		d.number(at, float64(p.slices[i]), 1e12)
		if sum += p.slices[i]; p.slices[i] != 0 && sum > f.Quota.Tokens {
			d.Wrong(at, "the slices add up to %d tokens per minute; quota has tokens-per-minute: %d for all tenants, write more there or less here", sum, f.Quota.Tokens)
		}
	}
	if len(p.shared) > quota.MaxLimits {
		d.Wrong([]any{"quota"}, "%d limits; write at most %d", len(p.shared), quota.MaxLimits)
	}
}
