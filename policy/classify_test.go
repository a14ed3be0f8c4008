package policy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/reason"
)

const rulebook = `
tiers: [{name: vip}, {name: normal}, {name: batch}]
default-tier: normal
tenants:
  boss: {tier: vip}
  acme: {models: [small, "qwen*"]}
  proxy: {tier: vip, trust-fairness-id: true}
models:
  small: [{model: q7}]
  ab: [{model: qa, weight: 3}, {model: qb, weight: 1}]
  auto: [{model: q7, prompt-up-to: 1000}, {model: q72, prompt-up-to: 8000}, {model: long}]
rules:
  - {name: nightly, when: {headers: {x-job: "nightly-*", x-team: "*"}}, then: {tier: batch}}
  - {name: raise, when: {headers: {x-raise: "1"}}, then: {tier: vip}}
  - {name: long, when: {model: ["q7*", q9], prompt-tokens: {min: 4000}}, then: {pool: h200}}
  - {name: short answers, when: {max-tokens: {max: 16}}, then: {type: short}}
  - {name: agents, when: {tools: true, stream: true, path: /v1/chat/*}, then: {type: agent}}
  - {name: pictures, when: {images: true}, then: {model: ab}}
  - {name: prompted, when: {system-bytes: {min: 100}, tenant: [boss]}, then: {type: prompted}}
  - {name: urgent, when: {priority: {max: -10}}, then: {pool: fast}}
  - {name: flex, when: {service-tier: "fl*"}, then: {pool: slow}}
  - {name: research, when: {keyword: ["deep research", "größte"]}, then: {model: auto}}
`

func TestClassify(t *testing.T) {
	p := mustParse(t, rulebook)
	base := Decision{Reason: reason.OK, Tier: 1, Lane: lane.Key{Tier: "normal", Type: "chat", Model: "q", Tenant: "boss"}, Rule: -1, TierBy: ByDefault, ModelBy: ByClient}
	rule := func(name string) int {
		for i := range p.rules {
			if p.rules[i].Name == name {
				return i
			}
		}
		t.Fatalf("no rule %q", name)
		return 0
	}
	type change = func(*Request, *Decision)
	header := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	tier := func(d *Decision, i int, by By) { d.Tier, d.Lane.Tier, d.TierBy = i, p.Tiers[i].Name, by }
	for _, c := range []struct {
		name, tenant string
		change       change
	}{
		{"nothing said", "other", func(_ *Request, d *Decision) {}},
		{"the tenant's tier", "boss", func(_ *Request, d *Decision) { tier(d, 0, ByTenant) }},
		{"a lower one by header", "boss", func(r *Request, d *Decision) { r.Headers = header("x-penstock-tier", " batch "); tier(d, 2, ByHeader) }},
		{"a higher one is capped", "acme", func(r *Request, d *Decision) {
			r.Model, d.Lane.Model = "qwen", "qwen"
			r.Headers = header("x-penstock-tier", "vip")
			tier(d, 1, ByHeader)
			d.Capped = true
		}},
		{"a tenant without entry is capped", "other", func(r *Request, d *Decision) {
			r.Headers = header("x-penstock-tier", "vip")
			tier(d, 1, ByHeader)
			d.Capped = true
		}},
		{"an unknown tier", "other", func(r *Request, d *Decision) {
			r.Headers = header("x-penstock-tier", "gold")
			*d = Decision{Reason: reason.BadRequest, Tier: -1, Rule: -1, TierBy: ByHeader, Lane: lane.Key{Type: "chat", Tenant: "other"}}
		}},
		{"objective", "boss", func(r *Request, d *Decision) {
			r.Headers = header("x-gateway-inference-objective", "batch")
			tier(d, 2, ByObjective)
		}},
		{"an unknown objective says nothing", "other", func(r *Request, d *Decision) { r.Headers = header("x-gateway-inference-objective", "food-review") }},
		{"service_tier with a tier's name", "boss", func(r *Request, d *Decision) { r.ServiceTier = "normal"; tier(d, 1, ByServiceTier) }},
		{"service_tier priority", "boss", func(r *Request, d *Decision) { r.ServiceTier = "priority"; tier(d, 0, ByServiceTier) }},
		{"service_tier flex", "boss", func(r *Request, d *Decision) {
			r.ServiceTier = "flex"
			tier(d, 2, ByServiceTier)
			d.Rule, d.Lane.Pool = rule("flex"), "slow"
		}},
		{"service_tier auto", "other", func(r *Request, d *Decision) { r.ServiceTier = "auto" }},
		{"priority: lower goes first", "boss", func(r *Request, d *Decision) { r.Priority = 1; tier(d, 1, ByPriority) }},
		{"priority: a large one", "other", func(r *Request, d *Decision) { r.Priority = 1 << 40; tier(d, 2, ByPriority) }},
		{"priority: capped", "other", func(r *Request, d *Decision) {
			r.Priority = -1 << 40
			tier(d, 1, ByPriority)
			d.Capped, d.Rule, d.Lane.Pool = true, rule("urgent"), "fast"
		}},
		{"a rule on headers", "boss", func(r *Request, d *Decision) {
			r.Headers = header("x-job", "nightly-7", "x-team", "a", "x-penstock-tier", "vip")
			tier(d, 2, ByRule)
			d.Rule = rule("nightly")
		}},
		{"not all headers", "other", func(r *Request, d *Decision) { r.Headers = header("x-job", "nightly-7") }},
		{"a rule is capped too", "other", func(r *Request, d *Decision) {
			r.Headers = header("x-raise", "1")
			tier(d, 1, ByRule)
			d.Rule, d.Capped = rule("raise"), true
		}},
		{"prompt length", "other", func(r *Request, d *Decision) {
			r.Model, r.Prompt = "q72", 4000
			d.Rule, d.Lane.Model, d.Lane.Pool = rule("long"), "q72", "h200"
		}},
		{"prompt too short", "other", func(r *Request, d *Decision) { r.Model, r.Prompt = "q72", 3999; d.Lane.Model = "q72" }},
		{"max_tokens", "other", func(r *Request, d *Decision) { r.Max = 16; d.Rule, d.Lane.Type = rule("short answers"), "short" }},
		{"tools", "other", func(r *Request, d *Decision) {
			r.Tools, r.Stream = true, true
			d.Rule, d.Lane.Type = rule("agents"), "agent"
		}},
		{"images, and the model by weight", "other", func(r *Request, d *Decision) {
			r.Images = true
			d.Rule, d.Lane.Model, d.ModelBy = rule("pictures"), "qa", ByWeight
		}},
		{"system prompt", "boss", func(r *Request, d *Decision) {
			r.SystemBytes = 100
			tier(d, 0, ByTenant)
			d.Rule, d.Lane.Type = rule("prompted"), "prompted"
		}},
		{"keyword", "other", func(r *Request, d *Decision) {
			r.Body, r.Prompt = []byte(`{"content":"some deep research"}`), 1000
			d.Rule, d.Lane.Model, d.ModelBy = rule("research"), "q7", ByPrompt
		}},
		{"keyword, escaped", "other", func(r *Request, d *Decision) {
			r.Body, r.Prompt = []byte(`{"content":"gr\u00f6\u00dfte"}`), 8001
			d.Rule, d.Lane.Model, d.ModelBy = rule("research"), "long", ByPrompt
		}},
		{"alias", "other", func(r *Request, d *Decision) { r.Model = "small"; d.Lane.Model, d.ModelBy = "q7", ByAlias }},
		{"alias that is allowed", "acme", func(r *Request, d *Decision) { r.Model = "small"; d.Lane.Model, d.ModelBy = "q7", ByAlias }},
		{"forbidden model", "acme", func(r *Request, d *Decision) { d.Reason = reason.Forbidden }},
		{"fairness id", "proxy", func(r *Request, d *Decision) {
			r.Headers = header("x-gateway-inference-fairness-id", "user-"+strings.Repeat("x", 90))
			tier(d, 0, ByTenant)
			d.Lane.Tenant, d.FairedBy = "proxy/user-"+strings.Repeat("x", 59), true
		}},
		{"fairness id of somebody", "other", func(r *Request, d *Decision) { r.Headers = header("x-gateway-inference-fairness-id", "user-1") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			who, _ := p.Tenant(c.tenant)
			r, want := Request{ID: "0", Tenant: &who, Path: "/v1/chat/completions", Type: "chat", Model: "q"}, base
			want.Lane.Tenant = c.tenant
			c.change(&r, &want)
			if diff := cmp.Diff(want, p.Classify(&r)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestServiceTierDefault: OpenAI's "default" is not the tier of that name.
func TestServiceTierDefault(t *testing.T) {
	p := mustParse(t, "tiers: [{name: vip}, {name: default}]\ntenants: {boss: {tier: vip}}")
	who, _ := p.Tenant("boss")
	if d := p.Classify(&Request{Tenant: &who, Model: "q", ServiceTier: "default"}); d.Lane.Tier != "vip" {
		t.Errorf("tier %s, want the tenant's", d.Lane.Tier)
	}
}

// TestNoTenants: where nobody is known apart, nobody has a cap.
func TestNoTenants(t *testing.T) {
	for name, p := range map[string]*Policy{"flags": Default([]Tier{{Name: "vip", Ceiling: 1}, {Name: "normal", Ceiling: 1}}, ""), "file": mustParse(t, "tiers: [{name: vip}, {name: normal}]")} {
		who, _ := p.Who("")
		d := p.Classify(&Request{Tenant: &who, Model: "q", Headers: http.Header{"X-Penstock-Tier": {"vip"}}})
		if d.Lane.Tier != "vip" || d.Capped {
			t.Errorf("%s: %+v, want vip", name, d)
		}
		if d := p.Classify(&Request{Tenant: &who, Model: "q"}); d.Lane.Tier != "normal" {
			t.Errorf("%s, none named: %+v, want normal", name, d)
		}
	}
	p := Default(nil, "")
	who, _ := p.Who("")
	if d := p.Classify(&Request{Tenant: &who, Model: "q", Headers: http.Header{"X-Penstock-Tier": {"gold"}}}); d.Reason != reason.OK || d.Lane.Tier != "default" {
		t.Errorf("without tiers: %+v, want the header not looked at", d)
	}
}

func TestLanesBy(t *testing.T) {
	p := mustParse(t, "lanes: {by: [tier, model, pool]}")
	who, _ := p.Tenant("acme")
	if d := p.Classify(&Request{Tenant: &who, Type: "chat", Model: "q"}); d.Lane != (lane.Key{Tier: "default", Model: "q"}) {
		t.Errorf("lane %+v, want neither type nor tenant", d.Lane)
	}
}

// TestWeights: the share is that of the weights, and an id keeps its model.
func TestWeights(t *testing.T) {
	p := mustParse(t, rulebook)
	who, _ := p.Tenant("x")
	got := map[string]int{}
	for i := range 10_000 {
		r := Request{ID: strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i%113), Tenant: &who, Model: "ab"}
		r.ID += string(rune(i))
		m := p.Classify(&r).Lane.Model
		if p.Classify(&r).Lane.Model != m {
			t.Fatal("an id has two models")
		}
		got[m]++
	}
	if got["qa"] < 7300 || got["qa"] > 7700 {
		t.Errorf("%v, want about 3 to 1", got)
	}
}

func classifyOf(t testing.TB) (*Policy, *Request) {
	p := mustParse(t, rulebook)
	who, _ := p.Tenant("boss")
	return p, &Request{ID: "0123456789abcdef", Tenant: &who, Path: "/v1/chat/completions", Type: "chat", Model: "auto", Prompt: 5000, Headers: http.Header{"X-Penstock-Tier": {"normal"}, "X-Team": {"a"}}, Body: []byte(strings.Repeat("some words ", 400))}
}

func TestClassifyAllocates(t *testing.T) {
	p, r := classifyOf(t)
	if n := testing.AllocsPerRun(100, func() { p.Classify(r) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkClassify(b *testing.B) {
	p, r := classifyOf(b)
	for name, body := range map[string][]byte{"ten rules": nil, "two keywords in 4 kB": r.Body} {
		b.Run(name, func(b *testing.B) {
			r.Body = body
			b.ReportAllocs()
			for b.Loop() {
				p.Classify(r)
			}
		})
	}
}

func BenchmarkLane(b *testing.B) {
	p := mustParse(b, Example)
	b.ReportAllocs()
	for b.Loop() {
		p.Lane(lane.Key{Tier: "default", Type: "chat", Model: "q", Tenant: "t"})
	}
}
