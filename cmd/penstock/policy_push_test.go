package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/policy/source/nacos/nacostest"
)

func policyIn(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func penstock(args ...string) (code int, out, problem string) {
	var stdout, stderr bytes.Buffer
	code = run(args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestPolicyPush: the difference is shown, asked for, written where it still is one, and
// shown without being written.
func TestPolicyPush(t *testing.T) {
	m, n := miniredis.RunT(t), nacostest.Start(t)
	one, two, wrong := policyIn(t, "tiers: [{name: a}]\n"), policyIn(t, "tiers: [{name: a}, {name: b}]\n"), policyIn(t, "tiers: [{name: a}]\ntears: []\n")
	nacos := "nacos://" + n.Addr() + "/penstock.yaml?group=llm"
	for _, at := range []struct {
		name string
		args []string
	}{
		{"redis", []string{"--redis", m.Addr()}},
		{"nacos", []string{"--to", nacos}},
	} {
		t.Run(at.name, func(t *testing.T) {
			push := func(args ...string) (int, string, string) {
				return penstock(append(append([]string{"policy", "push"}, args...), at.args...)...)
			}
			for _, step := range []struct {
				name string
				args []string
				code int
				want []string
			}{
				{"wrong", []string{wrong, "--yes"}, exit.Usage, []string{"line 2", `"tears"`, "^"}},
				{"dry", []string{one, "--dry-run"}, exit.OK, []string{"has no policy yet", "+tiers: [{name: a}]", "nothing is written"}},
				{"first", []string{one, "--yes"}, exit.OK, []string{"has no policy yet", "written to " + at.name}},
				{"the same", []string{one}, exit.OK, []string{"has this policy already"}},
				{"second", []string{two, "--yes"}, exit.OK, []string{"--- " + at.name, "+++ " + two, "-tiers: [{name: a}]\n+tiers: [{name: a}, {name: b}]", "written to"}},
			} {
				code, out, problem := push(step.args...)
				for _, part := range step.want {
					if code != step.code || !strings.Contains(out+problem, part) {
						t.Errorf("%s: code %d, %q %q; want %d with %q", step.name, code, out, problem, step.code, part)
					}
				}
			}
		})
	}
	if text, err := m.Get("penstock:policy"); err != nil || text != "tiers: [{name: a}, {name: b}]\n" {
		t.Errorf("Redis has %q, %v", text, err)
	}
	for _, wrong := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--to", "other.yaml"}, exit.Usage, "want redis: or nacos://"},
		{[]string{"--to", "redis://h:1"}, exit.Usage, "the address is that of --redis"},
		{[]string{"--to", "nacos://h"}, exit.Usage, "data id"},
		{[]string{"--policy-credentials-file", one}, exit.Usage, "without --to nacos://"},
		{[]string{"--redis", "127.0.0.1:1", "--yes"}, exit.Unreachable, "connection refused"},
	} {
		if code, out, problem := penstock(append([]string{"policy", "push", one}, wrong.args...)...); code != wrong.code || !strings.Contains(problem, wrong.want) {
			t.Errorf("%v: code %d, %q %q; want %d, %q", wrong.args, code, out, problem, wrong.code, wrong.want)
		}
	}
}

func TestPolicyPushAsks(t *testing.T) {
	m := miniredis.RunT(t)
	file := policyIn(t, "tiers: [{name: a}]\n")
	redis := flags.Backends{}
	if err := redis.ReadRedis(m.Addr(), "", ""); err != nil {
		t.Fatal(err)
	}
	at, err := openStore("redis:", "", redis.Policy)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	for _, c := range []struct{ answer, want string }{
		{"", "say --yes"},
		{"no\n", "nothing is written"},
		{"Y\n", ""},
	} {
		var out bytes.Buffer
		err := (&push{in: strings.NewReader(c.answer), out: &out}).run(t.Context(), file, at)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || m.Exists("penstock:policy") != (c.want == "") {
			t.Errorf("answer %q: %v, written %v; want %q", c.answer, err, m.Exists("penstock:policy"), c.want)
		}
		if !strings.Contains(out.String(), "write it to redis "+m.Addr()+" key penstock:policy? [y/N]") {
			t.Errorf("asked %q", out.String())
		}
	}
	// Somebody is faster than the answer.
	other := policyIn(t, "tiers: [{name: b}]\n")
	err = (&push{in: faster(func() {
		if err := m.Set("penstock:policy", "x"); err != nil {
			t.Error(err)
		}
	}), out: &bytes.Buffer{}}).run(t.Context(), other, at)
	if err == nil || !strings.Contains(err.Error(), "somebody has changed it meanwhile: nothing is written") {
		t.Errorf("somebody was faster: %v", err)
	}
	if code := exit.Code(err); code != exit.Failed {
		t.Errorf("exit code %d, want %d", code, exit.Failed)
	}
}

// faster answers yes, after something has happened.
type faster func()

func (f faster) Read(b []byte) (int, error) { f(); return copy(b, "y\n"), nil }

// TestPolicyPlaces: what --policy takes, by command, and what is wrong with the rest.
func TestPolicyPlaces(t *testing.T) {
	file := policyIn(t, "tiers: [{name: a}]\n")
	for _, c := range []struct {
		name       string
		standalone bool
		args       []string
		in, err    string
		named      bool
	}{
		{"a fleet's default", false, nil, flags.InRedis, "", false},
		{"by flags", false, []string{"--tiers", "[{name: a}]"}, flags.ByFlags, "", false},
		{"standalone's default", true, nil, flags.ByFlags, "", false},
		{"a file", true, []string{"--policy", file}, flags.InFile, "", true},
		{"the key", false, []string{"--policy", "redis:"}, flags.InRedis, "", true},
		{"nacos", true, []string{"--policy", "nacos://h/p"}, flags.InNacos, "", true},
		{"no Redis", true, []string{"--policy", "redis:"}, "", "standalone has no Redis", false},
		{"another Redis", false, []string{"--policy", "redis://h:1"}, "", "the address is that of --redis", false},
		{"nacos without an id", false, []string{"--policy", "nacos://h"}, "", `data id ""`, false},
		{"no file", false, []string{"--policy", file + "x"}, "", "no such file", false},
		{"tiers twice", false, []string{"--policy", "redis:", "--tiers", "[{name: a}]"}, "", "a policy names the tiers", false},
		{"credentials of nobody", false, []string{"--policy-credentials-file", file}, "", "without --policy nacos://", false},
		{"no credentials", false, []string{"--policy", "nacos://h/p", "--policy-credentials-file", file + "x"}, "", "no such file", false},
		{"reachable, and keys must be in the key", false, []string{"--policy", "redis:", "--listen", "0.0.0.0:4780"}, flags.InRedis, "", true},
		{"reachable, and nobody has keys", false, []string{"--listen", "0.0.0.0:4780"}, "", "there are no API keys", false},
		{"reachable, and the file has none", false, []string{"--listen", "0.0.0.0:4780", "--policy", file}, "", "there are no API keys", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newGateway().Flags()
			if c.standalone {
				f = newStandalone().Flags()
			}
			if err := f.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			o, err := flags.Read(f)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				return
			}
			if err != nil || o.PolicyIn != c.in || o.PolicyNamed != c.named || o.NeedKeys != strings.HasPrefix(c.name, "reachable") {
				t.Errorf("in %q named %v, keys needed %v, %v; want %q, %v", o.PolicyIn, o.PolicyNamed, o.NeedKeys, err, c.in, c.named)
			}
		})
	}
}
