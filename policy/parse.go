package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"penstock/quota"
	"penstock/scheduler"
)

// Age is that of the tier at place which names none.
func Age(place int) time.Duration {
	ages := [...]time.Duration{5 * time.Second, 5 * time.Second, 30 * time.Second, 120 * time.Second}
	return ages[min(place, len(ages)-1)]
}

// Parse reads a policy. All problems that can be found are reported together, each
// with its line, the value and the fix. Keys of tenants are given as hashes, so that
// no error quotes one.
func Parse(text []byte) (*Policy, error) {
	var f file
	d, err := read(text, &f)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	p := Default(nil, "")
	sum := sha256.Sum256(text)
	p.Hash = hex.EncodeToString(sum[:8])
	if len(d.Problems()) == 0 {
		p.readTiers(d, &f)
	}
	if len(d.Problems()) == 0 { // the rest is about tiers that are there
		p.readShared(d, &f)
		p.readTenants(d, &f)
		p.readAliases(d, &f)
		p.readRules(d, &f)
		p.readLanes(d, &f)
		p.readFilters(d, &f)
		p.readReroutes(d, &f) // what lanes.by leaves out is known
	}
	if len(d.Problems()) > 0 {
		return nil, fmt.Errorf("policy: %w", errors.Join(d.Problems()...))
	}
	return p, nil
}

func (p *Policy) readTiers(d draft, f *file) {
	if len(f.Tiers) > 0 {
		p.Tiers, p.tiered = make([]Tier, len(f.Tiers)), true
	}
	for i, from := range f.Tiers {
		t := Tier{Name: from.Name, Floor: from.Floor, Ceiling: 1, Age: Age(i), SLOTTFT: from.SLOTTFT, SLOTPOT: from.SLOTPOT}
		if from.Ceiling != nil {
			t.Ceiling = *from.Ceiling
		}
		if from.Age != nil {
			t.Age = *from.Age
			d.time([]any{"tiers", i, "age"}, t.Age, 600*time.Second)
		}
		d.time([]any{"tiers", i, "slo-ttft"}, t.SLOTTFT, 600*time.Second)
		d.time([]any{"tiers", i, "slo-tpot"}, t.SLOTPOT, time.Minute)
		d.word([]any{"tiers", i, "name"}, t.Name, maxTierName)
		p.Tiers[i] = t
	}
	if len(d.Problems()) == 0 {
		if err := scheduler.ValidateTiers(p.Tiers); err != nil {
			d.Wrong([]any{"tiers"}, "%s", strings.TrimPrefix(err.Error(), "tiers: "))
		}
	}
	p.defaultTier = len(p.Tiers) - 1
	if f.DefaultTier != "" {
		p.defaultTier = p.place(d, []any{"default-tier"}, f.DefaultTier)
	}
	p.anybody.Asks = p.defaultTier
}

// place is that of a tier by name.
func (p *Policy) place(d draft, path []any, name string) int {
	i := slices.Index(p.TierNames(), name)
	if i < 0 {
		d.Wrong(path, "the tier %q is not one of %s", name, strings.Join(p.TierNames(), ", "))
	}
	return max(i, 0)
}

func (p *Policy) readTenants(d draft, f *file) {
	if len(f.Tenants) > MaxTenants {
		d.Wrong([]any{"tenants"}, "%d tenants; write at most %d", len(f.Tenants), MaxTenants)
		return
	}
	keys := &Keys{byPrefix: map[uint64][]apiKey{}}
	for _, name := range sorted(f.Tenants) {
		from, at := f.Tenants[name], []any{"tenants", name}
		d.word(at, name, maxName)
		t := &Tenant{Name: name, entry: name, Tier: p.defaultTier, Models: from.Models, Deadline: from.Deadline, MaxDeadline: from.MaxDeadline, TrustsFairnessID: from.Fairness}
		if from.Tier != "" {
			t.Tier = p.place(d, append(at, "tier"), from.Tier)
		}
		t.Asks = t.Tier
		p.readDowngrade(d, append(at, "downgrade"), t, from.Downgrade)
		d.patterns(append(at, "models"), from.Models)
		d.time(append(at, "deadline"), from.Deadline, 600*time.Second)
		d.time(append(at, "max-deadline"), from.MaxDeadline, 600*time.Second)
		if from.MaxDeadline > 0 && from.Deadline > from.MaxDeadline {
			d.Wrong(append(at, "deadline"), "deadline %s is longer than max-deadline %s", from.Deadline, from.MaxDeadline)
		}
		var limits int
		if t.quotas, limits = d.readQuotas(at, name, &from); limits+len(p.shared) > quota.MaxLimits {
			d.Wrong(at, "one request of %q would be held to %d limits; write at most %d, those of quota for all tenants included", name, limits+len(p.shared), quota.MaxLimits)
		}
		if len(from.Keys) > MaxKeys {
			d.Wrong(append(at, "keys"), "%d keys; write at most %d", len(from.Keys), MaxKeys)
			continue
		}
		for i, key := range from.Keys {
			if !strings.HasPrefix(key, hashPrefix) {
				d.Add(fmt.Errorf("tenants: key %d of %q is not hashed: write what penstock keys hash makes of it", i+1, name)) // does not quote the line: the key is in it
			} else if err := keys.put(name, key); err != nil {
				d.Wrong(append(at, "keys", i), "%s", err)
			}
		}
		p.tenants[name] = t
	}
	if keys.count > 0 {
		p.keys, p.own = keys, true
	}
	if len(p.tenants) > 0 { // somebody is known apart: who is not gets no more than the default
		p.anybody.Tier = p.defaultTier
	}
	if t := p.tenants[Anybody]; t != nil {
		p.anybody = t
	}
}

func (p *Policy) readAliases(d draft, f *file) {
	if len(f.Models) > MaxAliases {
		d.Wrong([]any{"models"}, "%d models; write at most %d", len(f.Models), MaxAliases)
		return
	}
	p.aliases = make(map[string][]Target, len(f.Models))
	for _, name := range sorted(f.Models) {
		from, at := f.Models[name], []any{"models", name}
		d.word(at, name, maxName)
		if len(from) == 0 || len(from) > MaxTargets {
			d.Wrong(at, "%d models behind %q; write 1 to %d of {model, weight, prompt-up-to}", len(from), name, MaxTargets)
			continue
		}
		targets, rest, last := make([]Target, 0, len(from)), 0, 0
		for i, t := range from {
			at := append(at, i)
			d.word(append(at, "model"), t.Model, maxName)
			if _, chained := f.Models[t.Model]; chained && t.Model != name {
				d.Wrong(append(at, "model"), "%q is itself one of models; name the model that an engine serves", t.Model)
			}
			weight := 1
			if t.Weight != nil {
				weight = *t.Weight
			}
			d.number(append(at, "weight"), float64(weight), 1e6)
			d.number(append(at, "prompt-up-to"), float64(t.Prompt), 1e9)
			switch {
			case t.Prompt > 0 && t.Weight != nil:
				d.Wrong(at, "weight and prompt-up-to exclude each other; give one")
			case t.Prompt > 0 && t.Prompt <= last:
				d.Wrong(append(at, "prompt-up-to"), "%d is not above the one before, %d; write them in order", t.Prompt, last)
			case t.Prompt > 0:
				last, weight = t.Prompt, 0
			}
			rest += weight
			targets = append(targets, Target{Model: t.Model, weight: weight, upTo: t.Prompt})
		}
		if rest == 0 {
			d.Wrong(at, "no model for the longest prompts; write one without prompt-up-to, of weight above 0")
		}
		p.aliases[name] = targets
	}
}

func (p *Policy) readRules(d draft, f *file) {
	if len(f.Rules) > MaxRules {
		d.Wrong([]any{"rules"}, "%d rules; write at most %d", len(f.Rules), MaxRules)
		return
	}
	p.rules = make([]Rule, 0, len(f.Rules))
	names := map[string]bool{}
	for i, from := range f.Rules {
		at := []any{"rules", i}
		r := d.when(append(at, "when"), &from.When)
		r.Name, r.Type, r.Model, r.Pool, r.tier = d.named(at, "rule", i, from.Name, names), from.Then.Type, from.Then.Model, from.Then.Pool, -1
		switch then := from.Then; {
		case then == fileThen{}:
			d.Wrong(at, "it has no \"then\"; write {tier, type, model, pool}, one or more of them")
		case then.Tier != "":
			r.tier = p.place(d, append(at, "then", "tier"), then.Tier)
		}
		for key, value := range map[string]string{"type": r.Type, "model": r.Model, "pool": r.Pool} {
			if value != "" {
				d.word(append(at, "then", key), value, maxWord)
			}
		}
		p.rules = append(p.rules, r)
	}
}

// when reads the conditions of a rule or a filter.
func (d draft) when(at []any, w *fileWhen) Rule {
	r := Rule{
		tenant: w.Tenant, model: w.Model, path: w.Path, serviceTier: w.ServiceTier,
		stream: w.Stream, tools: w.Tools, images: w.Images,
		prompt: w.Prompt.bounds(), maxTokens: w.MaxTokens.bounds(), system: w.System.bounds(), priority: w.Priority.bounds(),
	}
	for key, list := range map[string]words{"tenant": w.Tenant, "model": w.Model, "path": w.Path, "service-tier": w.ServiceTier, "keyword": w.Keyword} {
		d.patterns(append(at, key), list)
	}
	for _, word := range w.Keyword {
		plain, ascii := escaped(word)
		r.keywords = append(r.keywords, keyword{[]byte(plain), []byte(ascii)})
	}
	for _, name := range sorted(w.Headers) {
		d.word(append(at, "headers", name), name, maxWord)
		d.word(append(at, "headers", name), w.Headers[name], maxWord)
		r.headers = append(r.headers, header{textproto.CanonicalMIMEHeaderKey(name), w.Headers[name]})
	}
	for key, s := range map[string]span{"prompt-tokens": w.Prompt, "max-tokens": w.MaxTokens, "system-bytes": w.System, "priority": w.Priority} {
		if s.Min != nil && s.Max != nil && *s.Min > *s.Max {
			d.Wrong(append(at, key), "min %d is above max %d", *s.Min, *s.Max)
		}
	}
	if len(r.headers) > maxList {
		d.Wrong(append(at, "headers"), "%d headers; write at most %d", len(r.headers), maxList)
	}
	return r
}

func (p *Policy) readLanes(d draft, f *file) {
	l := &f.Lanes
	if len(l.By) > 0 {
		for i, name := range l.By {
			if !slices.Contains([]string{"tier", "type", "model", "pool", "tenant"}, name) || slices.Index(l.By, name) != i {
				d.Wrong([]any{"lanes", "by", i}, "%q: write each of tier, type, model, pool, tenant at most once", name)
			}
		}
		for _, name := range []string{"tier", "model", "pool"} {
			if !slices.Contains(l.By, name) {
				d.Wrong([]any{"lanes", "by"}, "%s is missing: who starts first and where depends on it; only type and tenant can be left out", name)
			}
		}
		p.lanes.noType, p.lanes.noTenant = !slices.Contains(l.By, "type"), !slices.Contains(l.By, "tenant")
	}
	p.lanes.rest = l.Default.over(Lane{})
	d.limits([]any{"lanes", "default"}, p.lanes.rest)
	if len(l.Patterns) > MaxPatterns {
		d.Wrong([]any{"lanes", "patterns"}, "%d patterns; write at most %d", len(l.Patterns), MaxPatterns)
		return
	}
	for i, from := range l.Patterns {
		at := []any{"lanes", "patterns", i}
		pattern := lanePattern{tier: from.Tier, ofType: from.Type, model: from.Model, pool: from.Pool, tenant: from.Tenant, Lane: from.Limits.over(p.lanes.rest)}
		p.checkPattern(d, at, &pattern)
		d.limits(at, pattern.Lane)
		p.lanes.patterns = append(p.lanes.patterns, pattern)
	}
}

// over is base with what is written.
func (l fileLimits) over(base Lane) Lane {
	if l.Concurrency != nil {
		base.Concurrency = *l.Concurrency
	}
	if l.Starts != nil {
		base.StartsPerSecond = *l.Starts
	}
	if l.Sends != nil {
		base.SendsPerSecond = *l.Sends
	}
	if l.Requests != nil {
		base.MaxRequests = *l.Requests
	}
	if l.Bytes != nil {
		base.MaxBytes = *l.Bytes
	}
	if l.Width != nil {
		base.Width = *l.Width
	}
	return base
}

func (d draft) limits(at []any, l Lane) {
	d.number(append(at, "concurrency"), float64(l.Concurrency), 1e6)
	d.number(append(at, "starts-per-second"), l.StartsPerSecond, 1e6)
	d.number(append(at, "sends-per-second"), l.SendsPerSecond, 1e6)
	d.number(append(at, "max-requests"), float64(l.MaxRequests), 1e6)
	d.number(append(at, "max-bytes"), float64(l.MaxBytes), 1<<40)
	d.number(append(at, "width"), float64(l.Width), 1024)
}

// bounds are a span's, wide open where it names none.
func (s span) bounds() bounds {
	b := everything
	if s.Min != nil {
		b.low = *s.Min
	}
	if s.Max != nil {
		b.high = *s.Max
	}
	return b
}

func (d draft) number(at []any, n, most float64) {
	if !(n >= 0 && n <= most) {
		d.Wrong(at, "%v: write 0 to %.0f", n, most)
	}
}

// time checks an optional time. One below a millisecond was written without its unit.
func (d draft) time(at []any, t, most time.Duration) {
	if t < 0 || t > most || t > 0 && t < time.Millisecond {
		d.Wrong(at, "%s: write a time with its unit, such as 500ms or 30s, at most %s", t, most)
	}
}

func (d draft) word(at []any, s string, most int) {
	if s == "" || len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		d.Wrong(at, "%q: write 1 to %d printable bytes", s[:min(len(s), 40)], most)
	}
}

func (d draft) patterns(at []any, list []string) {
	if len(list) > maxList {
		d.Wrong(at, "%d entries; write at most %d", len(list), maxList)
		return
	}
	for i, s := range list {
		d.word(append(at, i), s, maxWord)
	}
}
