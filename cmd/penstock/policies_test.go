package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/cmd/penstock/flags"
	"penstock/policy/apikey"
	"penstock/vllm/vllmtest"
)

// TestPolicyInForce runs standalone with a policy's file: keys, rules and a lane's
// concurrency hold, and a changed file holds for what comes next, everywhere.
func TestPolicyInForce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(tiers, trial string) {
		t.Helper()
		text := fmt.Sprintf(`
tiers: [%s]
tenants: {acme: {keys: ["%s"], tier: vip}}
models: {small: [{model: tiny}]}
rules: [{name: trials, when: {headers: {x-team: "try*"}}, then: {tier: trial}}]
lanes: {patterns: [{tier: trial, %s}]}
`, tiers, apikey.Hash("abc"), trial)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{name: vip}, {name: trial}", "concurrency: 1")
	e := vllmtest.Start(t)
	p := startProcess(t, func(o *flags.Options) { o.PolicyFile = file }, e.URL())
	if r := p.post(completion(20, 4, "")); r.status != http.StatusUnauthorized {
		t.Errorf("without a key: %v", r)
	}
	ask := func(header ...string) <-chan reply {
		return p.background(strings.Replace(completion(20, 8, streamed), `"tiny"`, `"small"`, 1), append(header, "Authorization", "Bearer abc")...)
	}
	all := func() (longest time.Duration) {
		t.Helper()
		var answers []<-chan reply
		for range 6 {
			answers = append(answers, ask("X-Team", "try-7"))
		}
		for _, a := range answers {
			r := <-a
			if r.status != http.StatusOK {
				p.bound("a trial: %v", r)
			}
			longest = max(longest, r.took)
		}
		return longest
	}
	if r := <-ask(); r.status != http.StatusOK {
		p.bound("of acme: %v", r)
	}
	all()
	if n := p.metric("penstock_decisions_total", "action=suspend", "reason=lane_concurrency"); n == 0 {
		p.bound("six trials at once, and none waited for another")
	}
	if n := p.metric("penstock_requests_total", "tier=trial", "model=tiny", "outcome=ok"); n != 6 {
		p.bound("%v trials counted, want 6", n)
	}
	old := p.Policy().Hash
	write("{name: top}, {name: vip}, {name: trial}", "concurrency: 100")
	if err := p.Reload(); err != nil {
		t.Fatal(err)
	}
	hash := p.Policy().Hash
	if p.metric("penstock_policy_info", "hash="+hash) != 1 || hash == old {
		t.Errorf("penstock_policy_info does not say %s", hash)
	}
	if _, body := p.page("/debug/state"); !strings.Contains(string(body), `"hash": "`+hash) && !strings.Contains(string(body), `"hash":"`+hash) {
		t.Error("/debug/state does not say the hash")
	}
	if _, page := p.page("/metrics"); !strings.Contains(string(page), `penstock_requests_total{model="tiny",outcome="ok",tier="top"} 0`) || !strings.Contains(string(page), `penstock_lane_permits{model="tiny",state="total",tier="top"}`) {
		t.Error("the new tier has no series")
	}
	before := p.metric("penstock_decisions_total", "action=suspend", "reason=lane_concurrency")
	all()
	if n := p.metric("penstock_decisions_total", "action=suspend", "reason=lane_concurrency"); n != before {
		t.Errorf("with room for 100: %v waited for another", n-before)
	}
	write("{name: top}, {name: vip}, {name: trial}", "starts-per-second: 5")
	if err := p.Reload(); err != nil {
		t.Fatal(err)
	}
	hash = p.Policy().Hash
	if took := all(); took < 600*time.Millisecond {
		p.bound("six starts at 5 per second took %v, want 800 ms but for the tolerance of one", took)
	}
	if err := os.WriteFile(file, []byte("tears: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Reload(); err == nil || p.Policy().Hash != hash {
		t.Errorf("a wrong file: %v, hash %s; want the old one", err, p.Policy().Hash)
	}
	if n := p.metric("penstock_policy_reload_failures_total"); n < 1 {
		t.Errorf("%v failures counted", n)
	}
}
