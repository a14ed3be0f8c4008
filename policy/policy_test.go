package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/policy/apikey"
	"penstock/policy/document"
	"penstock/policy/lanes"
	"penstock/policy/quotas"
	"penstock/quota"
)

func mustParse(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExample(t *testing.T) {
	p := mustParse(t, Example)
	if got := strings.Join(p.TierNames(), " "); got != "vip normal trial default" || p.DefaultTier() != "default" {
		t.Errorf("tiers %s, default %s", got, p.DefaultTier())
	}
	for tier, want := range map[string]lanes.Limits{
		"vip": {Concurrency: 30, StartsPerSecond: 200, MaxRequests: 10_000}, "normal": {Concurrency: 15, StartsPerSecond: 50, MaxRequests: 1000},
		"trial": {Concurrency: 1, StartsPerSecond: 1, MaxRequests: 20, MaxBytes: 8 << 20, Width: 1}, "default": {Concurrency: 10, StartsPerSecond: 10, MaxRequests: 1000},
	} {
		if got := p.Lane(lane.Key{Tier: tier, Type: "chat", Model: "m", Tenant: "t"}); got != want {
			t.Errorf("%s: %+v, want %+v", tier, got, want)
		}
	}
	who, ok := mustParse(t, strings.Replace(Example, fmt.Sprintf("sha256:%064d", 1), apikey.Hash("abc123"), 1)).Who("Bearer abc123")
	want := Tenant{Name: "acme", Models: []string{"qwen*", "small"}, Deadline: 30 * time.Second, MaxDeadline: 2 * time.Minute}
	who.Key, who.quotas, who.downgrades = "", quotas.Tenant{}, nil
	if diff := cmp.Diff(want, who, cmp.AllowUnexported(Tenant{}, quotas.Tenant{})); diff != "" || !ok {
		t.Errorf("acme (-want +got)\n%s", diff)
	}
	if _, ok := p.Who("Bearer nope"); ok {
		t.Error("an unknown key has a tenant")
	}
	if again := mustParse(t, Example); again.Hash != p.Hash || len(p.Hash) != 16 {
		t.Errorf("hashes %q and %q", p.Hash, again.Hash)
	}
	if other := mustParse(t, Example+"#\n"); other.Hash == p.Hash {
		t.Error("another text has the same hash")
	}
}

// TestWho: keys of a file of their own go with any policy.
func TestWho(t *testing.T) {
	keys, err := apikey.Parse([]byte("acme: secret-1\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := Default(nil, "").WithKeys(keys)
	for header, want := range map[string]string{"Bearer secret-1": "acme", "": "", "Bearer nope": ""} {
		who, ok := p.Who(header)
		if who.Name != want || ok != (want != "") || ok == (who.Key == "") {
			t.Errorf("Who(%q) = %q by key %q, %v, want %q", header, who.Name, who.Key, ok, want)
		}
	}
	if p.OwnKeys() || !p.Authenticates() || p.KeysOf("acme") != 1 || p.KeysOf("other") != 0 {
		t.Errorf("own %v, needed %v, %d of acme, %d of other; want false, true, 1, 0", p.OwnKeys(), p.Authenticates(), p.KeysOf("acme"), p.KeysOf("other"))
	}
	if who, ok := Default(nil, "").Who(""); who.Name != "default" || !ok {
		t.Errorf("without keys: %q, %v, want default", who.Name, ok)
	}
}

func TestFaults(t *testing.T) {
	const tiers = "tiers: [{name: a}, {name: b}]\n"
	for _, c := range []struct{ name, yaml, want string }{
		{"empty", "", "the file says nothing. See: penstock policy example"},
		{"a comment", "# nothing\n", "the file says nothing"},
		{"no mapping", "- a\n", "policy: "},
		{"unknown key", "tires: []\n", "line 1: unknown key \"tires\", did you mean \"tiers\"?\n    tires: []\n    ^"},
		{"deep unknown key", tiers + "tenants:\n  acme: {teir: a}\n", "line 3: unknown key \"teir\", did you mean \"tier\"?\n      acme: {teir: a}\n             ^"},
		{"underscore", tiers + "default_tier: a\n", `did you mean "default-tier"?`},
		{"nothing near", "zzzzzzzzzzzzz: 1\n", "known here: default-tier, filters, lanes, models, quota, reroutes, rules, tenants, tiers"},
		{"two at once", "aaaaaaaaaaaaaa: 1\nbbbbbbbbbbbbbbbb: 2\n", "line 2: unknown key"},
		{"twice", "rules: []\nrules: []\n", "already defined"},
		{"wrong type", "rules: 7\n", "rules: 7"},
		{"anchor", "rules: &x []\n", "anchors, aliases and tags"},
		{"merge", "tiers: []\nlanes:\n  <<: {by: []}\n", "not understood here"},
		{"two documents", "rules: []\n---\nrules: []\n", "2 documents"},
		{"deep", "rules: " + strings.Repeat("[", 20), "nests deeper than 16"},
		{"long line", "#" + strings.Repeat("x", 9000), "has 9001 bytes"},
		{"large", strings.Repeat("# x\n", 1<<18+1), "write at most 1048576"},
		{"control character", "rules: [] \x01\n", "line 1 has a control character"},
		{"time without unit", "tiers: [{name: a, age: 5}]\n", "of type time.Duration"},
		{"tiny time", "tiers: [{name: a, age: 5ns}]\n", "5ns: write a time with its unit"},
		{"no name", "tiers: [{floor: 1}]\n", "1 to 32 printable bytes"},
		{"floors", "tiers: [{name: a, floor: 0.7}, {name: b, floor: 0.7}]\n", "floors add up to 1.4"},
		{"default tier", tiers + "default-tier: c\n", "the tier \"c\" is not one of a, b\n    default-tier: c"},
		{"tenant's tier", tiers + "tenants: {x: {tier: c}}\n", `line 2: the tier "c" is not one of a, b`},
		{"plain key", "tenants: {x: {keys: [hunter2]}}\n", `key 1 of "x" is not hashed: write what penstock keys hash makes of it`},
		{"bad hash", "tenants: {x: {keys: [\"sha256:12\"]}}\n", "needs 64 hex digits"},
		{"same key", "tenants:\n  x: {keys: [\"" + apikey.Hash("k") + "\"]}\n  y: {keys: [\"" + apikey.Hash("k") + "\"]}\n", `tenants "x" and "y" have the same key`},
		{"slices", "quota: {tokens-per-minute: 10}\ntiers: [{name: a, slice: 11}]\n", "the slices add up to 11"},
		{"deadlines", "tenants: {x: {deadline: 20s, max-deadline: 10s}}\n", "deadline 20s is longer than max-deadline 10s"},
		{"deadline too long", "tenants: {x: {deadline: 2h}}\n", "at most 10m0s"},
		{"no targets", "models: {m: []}\n", `0 models behind "m"`},
		{"chain", "models: {m: [{model: n}], n: [{model: o}]}\n", `"n" is itself one of models`},
		{"no rest", "models: {m: [{model: n, prompt-up-to: 10}]}\n", "no model for the longest prompts"},
		{"both", "models: {m: [{model: n, prompt-up-to: 10, weight: 1}, {model: o}]}\n", "exclude each other"},
		{"order", "models: {m: [{model: n, prompt-up-to: 10}, {model: p, prompt-up-to: 5}, {model: o}]}\n", "5 is not above the one before, 10"},
		{"rule without then", "rules: [{when: {stream: true}}]\n", "it has no \"then\""},
		{"rule's tier", tiers + "rules: [{then: {tier: z}}]\n", `the tier "z" is not one of a, b`},
		{"range", "rules: [{when: {max-tokens: {min: 9, max: 1}}, then: {pool: x}}]\n", "min 9 is above max 1"},
		{"rules of one name", "rules: [{name: r, then: {pool: x}}, {name: r, then: {pool: y}}]\n", `two rules are called "r"`},
		{"lanes by", "lanes: {by: [tier, model]}\n", "pool is missing"},
		{"pattern's tier", tiers + "lanes: {patterns: [{tier: gold}]}\n", `no tier is like "gold"; there are a, b`},
		{"reroute without trouble", "reroutes: [{to: {model: m}}]\n", `it has 0 troubles under "on"`},
		{"reroute without target", "reroutes: [{on: no_engine}]\n", `it has no "to"`},
		{"unknown trouble", "reroutes:\n  - on: [lane-full]\n    to: {model: m}\n", "line 2: unknown trouble \"lane-full\", did you mean \"lane_full\"?, or an engine's status from 400 to 499\n      - on: [lane-full]\n             ^"},
		{"an engine's 5xx", "reroutes: [{on: [503], to: {model: m}}]\n", "503: write an engine's status from 400 to 499"},
		{"unknown key of a reroute", "reroutes: [{on: [404], too: {model: m}}]\n", `unknown key "too", did you mean "to"?`},
		{"reroute's tier", tiers + "reroutes: [{on: [404], to: {tier: c}}]\n", `the tier "c" is not one of a, b`},
		{"reroute from a tier", tiers + "reroutes: [{from: {tier: c}, on: [404], to: {tier: b}}]\n", `no tier is like "c"; there are a, b`},
		{"reroute to itself", "reroutes: [{from: {model: m}, on: [404], to: {model: m}}]\n", "it leads to where the request comes from"},
		{"reroute by what is left out", "lanes: {by: [tier, model, pool]}\nreroutes: [{on: [404], to: {type: t}}]\n", "lanes.by leaves out the type"},
		{"reroute from a name for a model", "models: {small: [{model: q7}]}\nreroutes: [{from: {model: small}, on: [404], to: {model: m}}]\n", `line 2: "small" is one of models: its requests are in the lanes of what stands behind it, such as "q7"; write that`},
		{"reroute from a type", "rules: [{then: {type: agent}}]\nreroutes: [{from: {type: agnet}, on: [404], to: {model: m}}]\n", `no type is like "agnet"; rules give lanes these: agent, chat, completion, embedding`},
		{"reroute from a pool", "rules: [{then: {pool: h200}}]\nreroutes: [{from: {pool: a100}, on: [404], to: {model: m}}]\n", `no pool is like "a100"; rules give lanes these: h200`},
		{"reroute to models", "reroutes: [{on: [404], to: {model: \"q*\"}}]\n", `"q*": write the name of one model`},
		{"filter of models", "filters: [{model: \"g*\", passes: [safe]}]\n", `"g*": write the name of one model`},
		{"reroutes of one name", "reroutes: [{name: r, on: [404], to: {model: m}}, {name: r, on: [404], to: {model: m}}]\n", `two reroutes are called "r"`},
		{"downgrade", tiers + "tenants: {x: {tier: a, downgrade: [b, c]}}\n", `line 2: the tier "c" is not one of a, b`},
		{"downgrade upwards", tiers + "tenants: {x: {tier: b, downgrade: a}}\n", `the tier "a" is not below the tenant's, b`},
		{"downgrade twice", tiers + "tenants: {x: {tier: a, downgrade: [b, b]}}\n", `the tier "b" is there twice`},
		{"downgrade of another kind", tiers + "tenants: {x: {downgrade: {to: b}}}\n", "line 2: "},
		{"filter without model", "filters: [{passes: [safe]}]\n", "write 1 to 256 printable bytes"},
		{"filter without answer", "filters: [{model: g}]\n", "write one of passes and stops"},
		{"filter with both", "filters: [{model: g, passes: [safe], stops: [unsafe]}]\n", "write one of passes and stops"},
		{"filter's length", "filters: [{model: g, passes: [safe], max-tokens: 0}]\n", "0: write 1 to 4096"},
		{"filter's key", "filters: [{model: g, pases: [safe]}]\n", `unknown key "pases", did you mean "passes"?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Parse([]byte(c.yaml))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("policy %v, error %v; want one with %q", p, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error quotes a key: %v", err)
			}
		})
	}
}

// TestComments: brackets in comments open nothing.
func TestComments(t *testing.T) {
	mustParse(t, strings.Repeat("# :[ {\n", 40)+"tiers: [{name: a}] # ([{\n")
}

func TestBounds(t *testing.T) {
	many := func(n int, head, each string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range n {
			fmt.Fprintf(&b, each, i)
		}
		return b.String()
	}
	for _, c := range []struct {
		head, each string
		most       int
	}{
		{"tenants:\n", "  t%d: {}\n", MaxTenants},
		{"rules:\n", "  - {then: {type: t%d}}\n", MaxRules},
		{"models:\n", "  m%d: [{model: x}]\n", MaxAliases},
		{"lanes:\n  patterns:\n", "    - {model: m%d}\n", lanes.MaxPatterns},
		{"reroutes:\n", "  - {on: [404], to: {model: m%d}}\n", MaxReroutes},
		{"filters:\n", "  - {model: m%d, passes: [safe]}\n", MaxFilters},
		{"tenants:\n  x:\n    models:\n", "      - m%d\n", document.MaxList},
		{"models:\n  x:\n", "    - {model: m%d}\n", MaxTargets},
	} {
		if _, err := Parse([]byte(many(c.most, c.head, c.each))); err != nil {
			t.Errorf("%q x %d: %v", c.each, c.most, err)
		}
		if _, err := Parse([]byte(many(c.most+1, c.head, c.each))); err == nil || !strings.Contains(err.Error(), fmt.Sprint("at most ", c.most)) && !strings.Contains(err.Error(), fmt.Sprint("1 to ", c.most)) {
			t.Errorf("%q x %d: error %v, want the bound", c.each, c.most+1, err)
		}
	}
}

func TestLimits(t *testing.T) {
	p := mustParse(t, strings.Replace(Example, fmt.Sprintf("sha256:%064d", 1), apikey.Hash("abc123"), 1))
	who, _ := p.Who("Bearer abc123")
	shared := quota.Limit{Scope: quota.Tier, Bucket: "all", Amount: 6_000_000, Per: time.Minute, Own: 2_000_000, Slice: "vip"}
	want := []quota.Limit{
		{Scope: quota.Tenant, Bucket: "acme", Amount: 600_000, Per: time.Minute},
		{Scope: quota.Tenant, Bucket: "acme", Unit: quota.Requests, Amount: 600, Per: time.Minute},
		{Scope: quota.Tenant, Bucket: "acme", Amount: 100_000_000, Per: quota.Day, Window: true},
		shared,
	}
	if diff := cmp.Diff(want, p.Limits(nil, &who, "qwen-7b", 0)); diff != "" {
		t.Errorf("acme (-want +got)\n%s", diff)
	}
	shared.Own, shared.Slice = 0, ""
	want[3] = quota.Limit{Scope: quota.Model, Bucket: "acme\x00qwen-72b", Amount: 100_000, Per: time.Minute}
	if diff := cmp.Diff(append(want, shared), p.Limits(nil, &who, "qwen-72b", 1)); diff != "" {
		t.Errorf("acme, the large model, tier normal (-want +got)\n%s", diff)
	}
	p = mustParse(t, "tenants: {x: {keys: [\""+apikey.Hash("k")+"\", \""+apikey.Hash("l")+"\"], key-quota: {requests-per-minute: 1}}}")
	who, _ = p.Who("Bearer k")
	other, _ := p.Who("Bearer l")
	a, b := p.Limits(nil, &who, "m", 0), p.Limits(nil, &other, "m", 0)
	if len(a) != 1 || len(b) != 1 || a[0].Bucket == b[0].Bucket || a[0].Scope != quota.Key {
		t.Errorf("limits of two keys: %+v and %+v", a, b)
	}
	p = mustParse(t, "tenants: {default: {quota: {tokens-per-minute: 5}, model-quota: {m: {tokens-per-minute: 2}}}}")
	who, _ = p.Tenant("unlisted")
	if l := p.Limits(nil, &who, "m", 0); len(l) != 2 || l[0].Bucket != "unlisted" || l[1].Bucket != "unlisted\x00m" {
		t.Errorf("a tenant without an entry: %+v, want limits of its own", l)
	}
	for _, tenant := range []string{"unknown", "default"} {
		who, _ = Default(nil, "").Tenant(tenant)
		if l := Default(nil, "").Limits(nil, &who, "m", 0); len(l) != 0 {
			t.Errorf("without a file: %+v", l)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{Example, "tiers: [{name: a}]", "rules:\n- when: {keyword: x}\n  then: {pool: y}\n", "lanes: {default: {concurrency: 1}}", "tenants: {a: {keys: [x], downgrade: [b]}}", "tenants: {a: {downgrade: true}}", "reroutes: [{from: {model: m}, on: [no_engine, 404], to: {model: n}}]", "filters: [{model: g, stops: unsafe}]", "a: &b\nc: *b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse([]byte(text))
		if err != nil {
			if p != nil || !strings.HasPrefix(err.Error(), "policy: ") {
				t.Errorf("policy %v, error %q", p, err)
			}
			return
		}
		who, _ := p.Tenant("x")
		r := &Request{ID: "1", Tenant: &who, Type: "chat", Model: "m", Body: []byte("{}")}
		d := p.Classify(r)
		if d.Tier < who.Tier || d.Tier >= len(p.Tiers) || d.Lane.Model == "" {
			t.Errorf("%q: %+v of tenant %+v", text, d, who)
		}
		p.Lane(d.Lane)
		for _, trouble := range append(p.Troubles(), Trouble{Class: LaneFull}) {
			if _, to, ok := p.Reroute(d, trouble, r); ok && (to.Lane == d.Lane || to.Tier < who.Tier) {
				t.Errorf("%q: from %v to %v", text, d.Lane, to.Lane)
			}
		}
		if to, ok := p.Downgrade(d, &who, MayDowngrade); ok && to.Tier <= d.Tier {
			t.Errorf("%q: from tier %d down to %d", text, d.Tier, to.Tier)
		}
		for _, f := range p.Filters(r) {
			if f.Passes("") || f.Lane(p, d, r).Model == "" {
				t.Errorf("%q: filter %q lets nothing pass", text, f.Name)
			}
		}
	})
}
