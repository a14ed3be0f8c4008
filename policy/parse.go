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

	"penstock/policy/apikey"
	"penstock/policy/document"
	"penstock/policy/lanes"
	"penstock/policy/quotas"
	"penstock/scheduler"
)

// Parse reads a policy. All problems that can be found are reported together, each
// with its line, the value and the fix. Keys of tenants are given as hashes, so that
// no error quotes one.
func Parse(text []byte) (*Policy, error) {
	var f file
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("policy: the file has %d bytes; write at most %d", len(text), MaxBytes)
	}
	d, err := document.Read(text, &f)
	if errors.Is(err, document.ErrEmpty) {
		err = fmt.Errorf("%w. See: penstock policy example", err)
	}
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
		own := make([]quotas.Slice, len(p.Tiers))
		for i := range f.Tiers {
			own[i] = quotas.Slice{Tier: f.Tiers[i].Name, Tokens: f.Tiers[i].Slice}
		}
		p.shared = quotas.ReadShared(d, &f.Quota, own)
		p.readTenants(d, &f)
		p.readAliases(d, &f)
		p.readRules(d, &f)
		p.lanes = lanes.Read(d, &f.Lanes, p.TierNames())
		p.readFilters(d, &f)
		p.readReroutes(d, &f) // what lanes.by leaves out is known
	}
	if len(d.Problems()) > 0 {
		return nil, fmt.Errorf("policy: %w", errors.Join(d.Problems()...))
	}
	return p, nil
}

func (p *Policy) readTiers(d *document.Document, f *file) {
	if len(f.Tiers) > 0 {
		p.Tiers, p.tiered = make([]Tier, len(f.Tiers)), true
	}
	for i, from := range f.Tiers {
		t := ReadTier(&from.TierFile, i)
		d.Time([]any{"tiers", i, "age"}, t.Age, 600*time.Second)
		d.Time([]any{"tiers", i, "slo-ttft"}, t.SLOTTFT, 600*time.Second)
		d.Time([]any{"tiers", i, "slo-tpot"}, t.SLOTPOT, time.Minute)
		d.Word([]any{"tiers", i, "name"}, t.Name, maxTierName)
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
func (p *Policy) place(d *document.Document, path []any, name string) int {
	i := slices.Index(p.TierNames(), name)
	if i < 0 {
		d.Wrong(path, "the tier %q is not one of %s", name, strings.Join(p.TierNames(), ", "))
	}
	return max(i, 0)
}

func (p *Policy) readTenants(d *document.Document, f *file) {
	if !d.Most([]any{"tenants"}, "tenants", len(f.Tenants), MaxTenants) {
		return
	}
	keys := &apikey.Keys{}
	for _, name := range sorted(f.Tenants) {
		from, at := f.Tenants[name], []any{"tenants", name}
		d.Word(at, name, document.MaxName)
		t := &Tenant{Name: name, Tier: p.defaultTier, Models: from.Models, Deadline: from.Deadline, MaxDeadline: from.MaxDeadline, TrustsFairnessID: from.Fairness}
		if from.Tier != "" {
			t.Tier = p.place(d, append(at, "tier"), from.Tier)
		}
		t.Asks = t.Tier
		p.readDowngrade(d, append(at, "downgrade"), t, from.Downgrade)
		d.List(append(at, "models"), from.Models)
		d.Time(append(at, "deadline"), from.Deadline, 600*time.Second)
		d.Time(append(at, "max-deadline"), from.MaxDeadline, 600*time.Second)
		if from.MaxDeadline > 0 && from.Deadline > from.MaxDeadline {
			d.Wrong(append(at, "deadline"), "deadline %s is longer than max-deadline %s", from.Deadline, from.MaxDeadline)
		}
		t.quotas = p.shared.ReadTenant(d, at, name, &from.Quotas)
		if !d.Most(append(at, "keys"), "keys", len(from.Keys), MaxKeys) {
			continue
		}
		for i, key := range from.Keys {
			if !strings.HasPrefix(key, apikey.Prefix) {
				d.Add(fmt.Errorf("tenants: key %d of %q is not hashed: write what penstock keys hash makes of it", i+1, name)) // does not quote the line: the key is in it
			} else if err := keys.Add(name, key); err != nil {
				d.Wrong(append(at, "keys", i), "%s", err)
			}
		}
		p.tenants[name] = t
	}
	if keys.Count() > 0 {
		p.keys, p.own = keys, true
	}
	if len(p.tenants) > 0 { // somebody is known apart: who is not gets no more than the default
		p.anybody.Tier = p.defaultTier
	}
	if t := p.tenants[Anybody]; t != nil {
		p.anybody = t
	}
}

func (p *Policy) readAliases(d *document.Document, f *file) {
	if !d.Most([]any{"models"}, "models", len(f.Models), MaxAliases) {
		return
	}
	p.aliases = make(map[string][]Target, len(f.Models))
	for _, name := range sorted(f.Models) {
		from, at := f.Models[name], []any{"models", name}
		d.Word(at, name, document.MaxName)
		if len(from) == 0 || len(from) > MaxTargets {
			d.Wrong(at, "%d models behind %q; write 1 to %d of {model, weight, prompt-up-to}", len(from), name, MaxTargets)
			continue
		}
		targets, rest, last := make([]Target, 0, len(from)), 0, 0
		for i, t := range from {
			at := append(at, i)
			d.Word(append(at, "model"), t.Model, document.MaxName)
			if _, chained := f.Models[t.Model]; chained && t.Model != name {
				d.Wrong(append(at, "model"), "%q is itself one of models; name the model that an engine serves", t.Model)
			}
			weight := 1
			if t.Weight != nil {
				weight = *t.Weight
			}
			d.Number(append(at, "weight"), float64(weight), 1e6)
			d.Number(append(at, "prompt-up-to"), float64(t.Prompt), 1e9)
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

func (p *Policy) readRules(d *document.Document, f *file) {
	if !d.Most([]any{"rules"}, "rules", len(f.Rules), MaxRules) {
		return
	}
	p.rules = make([]Rule, 0, len(f.Rules))
	names := map[string]bool{}
	for i, from := range f.Rules {
		at := []any{"rules", i}
		r := readWhen(d, append(at, "when"), &from.When)
		r.Name, r.Type, r.Model, r.Pool, r.tier = d.Name(at, "rule", i, from.Name, names), from.Then.Type, from.Then.Model, from.Then.Pool, -1
		switch then := from.Then; {
		case then == fileTo{}:
			d.Wrong(at, "it has no \"then\"; write {tier, type, model, pool}, one or more of them")
		case then.Tier != "":
			r.tier = p.place(d, append(at, "then", "tier"), then.Tier)
		}
		for key, value := range map[string]string{"type": r.Type, "model": r.Model, "pool": r.Pool} {
			if value != "" {
				d.Word(append(at, "then", key), value, document.MaxWord)
			}
		}
		p.rules = append(p.rules, r)
	}
}

// readWhen reads the conditions of a rule or a filter.
func readWhen(d *document.Document, at []any, w *fileWhen) Rule {
	r := Rule{
		tenant: w.Tenant, model: w.Model, path: w.Path, serviceTier: w.ServiceTier,
		stream: w.Stream, tools: w.Tools, images: w.Images,
		prompt: w.Prompt.bounds(), maxTokens: w.MaxTokens.bounds(), system: w.System.bounds(), priority: w.Priority.bounds(),
	}
	for key, list := range map[string]document.Words{"tenant": w.Tenant, "model": w.Model, "path": w.Path, "service-tier": w.ServiceTier, "keyword": w.Keyword} {
		d.List(append(at, key), list)
	}
	for _, word := range w.Keyword {
		plain, ascii := escaped(word)
		r.keywords = append(r.keywords, keyword{[]byte(plain), []byte(ascii)})
	}
	for _, name := range sorted(w.Headers) {
		d.Word(append(at, "headers", name), name, document.MaxWord)
		d.Word(append(at, "headers", name), w.Headers[name], document.MaxWord)
		r.headers = append(r.headers, header{textproto.CanonicalMIMEHeaderKey(name), w.Headers[name]})
	}
	for key, s := range map[string]span{"prompt-tokens": w.Prompt, "max-tokens": w.MaxTokens, "system-bytes": w.System, "priority": w.Priority} {
		if s.Min != nil && s.Max != nil && *s.Min > *s.Max {
			d.Wrong(append(at, key), "min %d is above max %d", *s.Min, *s.Max)
		}
	}
	d.Most(append(at, "headers"), "headers", len(r.headers), document.MaxList)
	return r
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
