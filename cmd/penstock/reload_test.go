package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/vllm/vllmtest"
)

// TestReload: what the command prints of a policy that changed, did not, and is wrong,
// and of settings that hold to the end.
func TestReload(t *testing.T) {
	t.Parallel()
	file, keys := policyIn(t, "tiers: [{name: a}]\n"), filepath.Join(t.TempDir(), "engine-key")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(keys, "secret")
	configFile := filepath.Join(t.TempDir(), "penstock.yaml")
	write(configFile, "slo-ttft: 2s\nengine-api-key-file: "+keys+"\n")
	f := newStandalone().Flags()
	if err := f.Parse([]string{"--config", configFile, "--policy", file, "--grace", "1s"}); err != nil {
		t.Fatal(err)
	}
	given, err := flags.Load(f, newStandalone)
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, func(o *flags.Options) { o.PolicyFile, o.Settings = file, given.Settings }, vllmtest.Start(t).URL())
	reload := func(args ...string) (int, string, string) {
		return penstock(append([]string{"reload", "--admin", p.AdminAddress()}, args...)...)
	}
	has := func(step string, wantCode int, parts ...string) {
		t.Helper()
		code, out, problem := reload()
		all := strings.Join(strings.Fields(out), " ") + "\n" + problem
		for _, part := range parts {
			if code != wantCode || !strings.Contains(all, part) {
				t.Errorf("%s: code %d, %s; want %d with %q", step, code, all, wantCode, part)
			}
		}
	}
	has("nothing new", exit.OK, "policy unchanged "+file, "settings unchanged "+configFile)
	write(file, "tiers: [{name: a}, {name: b}]\n")
	has("a new policy", exit.OK, "policy applied "+file, "was ")
	write(file, "tiers: [{name: a}]\n\ntears: []\n")
	has("a wrong one", exit.Failed, "policy refused", "line 3", "\n    tears: []\n    ^", "settings unchanged")
	if got := strings.Join(p.Policy().TierNames(), ""); got != "ab" {
		t.Errorf("tiers %s, want those of before", got)
	}
	write(file, "tiers: [{name: a}, {name: b}]\n")
	write(configFile, "slo-ttft: 3s\ngrace: 9s\nengine-api-key-file: "+keys+"\n")
	write(keys, "another")
	has("settings", exit.OK, "policy unchanged", "slo-ttft needs restart 3s ("+configFile+":1), was 2s", "engine-api-key-file needs restart "+keys+" has changed")
	if _, out, _ := reload("-o", "json"); strings.Contains(out, "grace") || !strings.Contains(out, `"result": "needs restart"`) {
		t.Errorf("json %s; want no grace, which the command line has", out)
	}
	write(configFile, "slo-tft: 3s\n")
	has("a wrong file", exit.Failed, "settings refused", `did you mean "slo-ttft"`)
	if code, _, problem := penstock("reload", "--admin", "127.0.0.1:1"); code != exit.Unreachable || !strings.Contains(problem, "a gateway's is 127.0.0.1:4785") {
		t.Errorf("nobody there: code %d, %q", code, problem)
	}
	if code, _, problem := penstock("reload", "--admin", p.Address()); code != exit.Failed || !strings.Contains(problem, "is no admin listener") {
		t.Errorf("not an admin listener: code %d, %q", code, problem)
	}
}

// TestPolicyFromRedis: one that appears is taken over, in the gateway, the agent and
// what status says, also through a Redis that goes away.
func TestPolicyFromRedis(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	back := flags.Backends{}
	if err := back.ReadRedis(m.Addr(), "", ""); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, func(o *flags.Options) { o.PolicyIn, o.Redis = flags.InRedis, &back.Policy }, vllmtest.Start(t).URL())
	if r := p.post(completion(20, 4, "")); r.status != 200 {
		p.bound("without a policy: %v", r)
	}
	grpc := p.GRPCAddress()
	if _, out, _ := penstock("status", "--grpc", grpc); !strings.Contains(out, " none ") {
		t.Errorf("status %s, want policy none", out)
	}
	if code, _, problem := penstock("policy", "push", policyIn(t, "tiers: [{name: a}, {name: b}]\n"), "--yes", "--redis", m.Addr()); code != exit.OK {
		t.Fatal(problem)
	}
	p.until("the policy", func() bool { return p.Policy().DefaultTier() == "b" })
	hash := p.Policy().Hash
	if r := p.post(completion(20, 4, ""), "X-Penstock-Tier", "a"); r.status != 200 {
		p.bound("in its tier: %v", r)
	}
	if _, out, _ := penstock("status", "--grpc", grpc); !strings.Contains(out, " "+hash[:8]+" ") || strings.Contains(out, "behind") {
		t.Errorf("status %s, want policy %s", out, hash[:8])
	}
	if err := m.Set("penstock:policy", "tears: []\n"); err != nil {
		t.Fatal(err)
	}
	m.Publish("penstock:policy", "")
	p.until("refused", func() bool { return strings.Contains(p.PolicyState().Problem, "tears") })
	if _, out, _ := penstock("status", "--grpc", grpc); !strings.Contains(out, hash[:8]+" behind") || !strings.Contains(out, "tears") {
		t.Errorf("status %s, want it behind and why", out)
	}
	m.Close()
	p.until("away", func() bool { return strings.Contains(p.PolicyState().Problem, "cannot be read") })
	if r := p.post(completion(20, 4, ""), "X-Penstock-Tier", "a"); r.status != 200 {
		p.bound("with Redis away: %v", r)
	}
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
}
