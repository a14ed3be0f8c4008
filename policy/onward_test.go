package policy

import (
	"strings"
	"testing"

	"penstock/lane"
)

// TestRerouteLanes: what a reroute leaves out stays, but the pool where the model is
// another, and the tier is never above the tenant's.
func TestRerouteLanes(t *testing.T) {
	p := mustParse(t, `
tiers: [{name: vip}, {name: normal}, {name: batch}]
tenants: {acme: {tier: normal}}
models: {big: [{model: q72, prompt-up-to: 100}, {model: q400}]}
rules: [{when: {tools: true}, then: {type: code}}]
reroutes:
  - {from: {type: code}, on: [404], to: {type: review, tier: vip}}
  - {from: {model: "q7*", tenant: acme}, on: [404, no_engine], to: {model: big}}
  - {from: {model: q9}, on: [no_engine], to: {pool: h200}}
  - {on: [no_engine], to: {model: q7}}
`)
	who, _ := p.Tenant("acme")
	for _, c := range []struct {
		name    string
		from    lane.Key
		trouble Trouble
		prompt  int
		want    string
	}{
		{"the type", lane.Key{Type: "code", Model: "q7", Pool: "a100"}, Trouble{Status: 404}, 0, "normal/review/q7/a100/acme"},
		{"the first that fits", lane.Key{Type: "chat", Model: "q7b", Pool: "a100"}, Trouble{Status: 404}, 0, "normal/chat/q72//acme"},
		{"by prompt length", lane.Key{Type: "chat", Model: "q7b"}, Trouble{Class: NoEngine}, 101, "normal/chat/q400//acme"},
		{"the pool", lane.Key{Type: "chat", Model: "q9", Pool: "a100"}, Trouble{Class: NoEngine}, 0, "normal/chat/q9/h200/acme"},
		{"a pool it is in", lane.Key{Type: "chat", Model: "q9", Pool: "h200"}, Trouble{Class: NoEngine}, 0, ""},
		{"from anywhere", lane.Key{Type: "chat", Model: "x"}, Trouble{Class: NoEngine}, 0, "normal/chat/q7//acme"},
		{"another trouble", lane.Key{Type: "chat", Model: "x"}, Trouble{Class: LaneFull}, 0, ""},
		{"a status nobody names", lane.Key{Type: "chat", Model: "q7"}, Trouble{Status: 422}, 0, ""},
		{"a class has its status too", lane.Key{Type: "chat", Model: "q7"}, Trouble{Class: TooLong, Status: 404}, 0, "normal/chat/q72//acme"},
	} {
		c.from.Tier, c.from.Tenant = "normal", "acme"
		_, to, ok := p.Reroute(Decision{Tier: 1, Lane: c.from}, c.trouble, &Request{Tenant: &who, Prompt: c.prompt})
		if got := to.Lane.String(); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s: %s, %v; want %q", c.name, got, ok, c.want)
		}
	}
	var names []string
	for _, trouble := range p.Troubles() {
		names = append(names, trouble.String())
	}
	if got := strings.Join(names, " "); got != "404 no_engine" {
		t.Errorf("troubles %s, want each once", got)
	}
}

func TestFilters(t *testing.T) {
	p := mustParse(t, `
models: {guard: [{model: guard-1b}]}
filters:
  - {name: all, model: guard, passes: ["safe*", "OK"]}
  - {when: {tenant: kids, keyword: [secret]}, model: g2, pool: cpu, stops: ["*unsafe*"], max-tokens: 99, refusal: "Not here."}
`)
	kids, _ := p.Tenant("kids")
	r := &Request{Tenant: &kids, Body: []byte(`{"a":"secret"}`)}
	all := p.Filters(r)
	if len(all) != 2 || len(p.Filters(&Request{Tenant: &kids})) != 1 {
		t.Fatalf("%d filters, want both, and one without the keyword", len(all))
	}
	d := Decision{Lane: lane.Key{Tier: "default", Type: "chat", Model: "q", Pool: "h200", Tenant: "kids"}}
	for i, want := range []string{"default/filter/guard-1b//kids", "default/filter/g2/cpu/kids"} {
		if got := all[i].Lane(p, d, r).String(); got != want {
			t.Errorf("lane %s, want %s", got, want)
		}
	}
	if all[0].MaxTokens != 16 || all[1].MaxTokens != 99 || all[1].Refusal != "Not here." || all[1].Name != "filter 2" || !strings.Contains(all[0].Refusal, "'all'") {
		t.Errorf("filters %+v and %+v", all[0], all[1])
	}
	for _, c := range []struct {
		filter int
		answer string
		passes bool
	}{
		{0, "safe", true},
		{0, "safe: s0", true},
		{0, "ok", true},
		{0, "okay", false},
		{0, "unsafe\ns1", false},
		{0, "", false},
		{1, "unsafe", false},
		{1, "this is unsafe.", false},
		{1, "safe", true},
		{1, "", false},
	} {
		if got := all[c.filter].Passes(c.answer); got != c.passes {
			t.Errorf("%s lets %q pass: %v", all[c.filter].Name, c.answer, got)
		}
	}
}
