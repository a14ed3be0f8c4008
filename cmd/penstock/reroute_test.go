package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/cmd/penstock/flags"
	"penstock/policy/apikey"
	"penstock/vllm/simengine"
	"penstock/vllm/vllmtest"
)

// TestRerouted runs standalone in front of a small and a big model and a guard: what is
// too long for the small one is answered by the big one, which says so, and is charged
// once; what the guard stops is answered by nobody.
func TestRerouted(t *testing.T) {
	t.Parallel()
	model := func(name string, length int) *vllmtest.Engine {
		return vllmtest.Start(t, vllmtest.WithConfig(func(c *simengine.Config) { c.Model, c.Engine.MaxModelLen = name, length }))
	}
	small, big, guard := model("tiny", 512), model("big", 2048), model("guard", 2048)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := fmt.Sprintf(`
tenants: {acme: {keys: ["%s"], quota: {tokens-per-minute: 1000000, requests-per-minute: 600}}}
filters:
  - {name: open, when: {headers: {x-guarded: "open"}}, model: guard, passes: ["*"]}
  - {name: shut, when: {headers: {x-guarded: "shut"}}, model: guard, stops: ["*"], refusal: Not here.}
reroutes:
  - {name: bigger, from: {model: tiny}, on: [context_length_exceeded], to: {model: big}}
`, apikey.Hash("abc"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, func(o *flags.Options) { o.PolicyFile = file }, urls(small, big, guard)...)
	settled := func() float64 { return p.metric("penstock_quota_settled_tokens_total") }
	ask := func(prompt int, more, guarded string) reply {
		return p.post(completion(prompt, 4, more), "Authorization", "Bearer abc", "X-Guarded", guarded)
	}
	p.until("all models are there", func() bool {
		return ask(20, "", "open").status == http.StatusOK && ask(600, "", "").status == http.StatusOK
	})
	before, asked := settled(), [...]int{small.Requests(), big.Requests()}
	for _, more := range []string{"", withUsage} {
		r := ask(600, more, "")
		if r.status != http.StatusOK || more != "" && !r.complete() || !strings.Contains(r.body, `"model":"big"`) || strings.Contains(r.body, "error") {
			t.Errorf("too long for tiny: %v", r)
		}
		if got, want := r.header.Get("X-Penstock-Route"), "default/completion/tiny context_length_exceeded, default/completion/big"; got != want {
			t.Errorf("by %q, want %q", got, want)
		}
	}
	if got := settled() - before; got != 2*(600+4) {
		t.Errorf("%v tokens settled, want those of the big model alone, %d", got, 2*604)
	}
	if got := [...]int{small.Requests() - asked[0], big.Requests() - asked[1]}; got[1] != 2 {
		t.Errorf("the engines had %v requests, want 2 at the big one", got)
	}
	if r := ask(20, "", ""); r.status != http.StatusOK || r.header.Get("X-Penstock-Route") != "" {
		t.Errorf("short enough: %v by %q", r, r.header.Get("X-Penstock-Route"))
	}
	if r := ask(600, withUsage, "open"); !r.complete() || r.header.Get("X-Penstock-Route") != "default/filter/guard passed, default/completion/tiny context_length_exceeded, default/completion/big" {
		t.Errorf("read by the guard first: %v by %q", r, r.header.Get("X-Penstock-Route"))
	}
	if r := ask(20, withUsage, "shut"); r.status != http.StatusBadRequest || r.reason() != "content_filter" || !strings.Contains(r.body, "Not here.") {
		t.Errorf("stopped by the guard: %v", r)
	}
	if r := ask(5000, "", ""); r.status != http.StatusBadRequest || !strings.Contains(r.body, "2048") {
		t.Errorf("too long for both: %v, want the big model's words", r)
	}
	if n := p.metric("penstock_reroutes_total", "move=reroute", "trouble=context_length_exceeded"); n < 4 {
		t.Errorf("%v reroutes counted", n)
	}
	if _, page := p.page("/debug/state"); !strings.Contains(string(page), `default/completion/tiny context_length_exceeded, default/completion/big`) {
		t.Error("/debug/state does not show the way")
	}
	p.until("everything at rest", func() bool {
		return p.metric("penstock_open_requests") == 0 && p.metric("penstock_inflight_requests") == 0
	})
}
