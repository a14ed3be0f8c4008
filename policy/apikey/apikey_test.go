package apikey

import (
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	keys, err := Parse([]byte("# who pays\nacme: secret-1\nbeta: \"secret-2\"\ngamma: " + Hash("secret-3") + "\ndelta: 0123\n"))
	if err != nil {
		t.Fatal(err)
	}
	if keys.Count() != 4 || keys.Of("acme") != 1 || keys.Of("epsilon") != 0 {
		t.Errorf("%d keys, %d of acme, %d of epsilon; want 4, 1, 0", keys.Count(), keys.Of("acme"), keys.Of("epsilon"))
	}
	for header, want := range map[string]string{
		"Bearer secret-1": "acme", "bearer secret-2": "beta", "Bearer  secret-3 ": "gamma", "Bearer 0123": "delta",
		"": "", "secret-1": "", "Basic secret-1": "", "Bearer": "", "Bearer nope": "", "Bearer " + Hash("secret-3"): "",
	} {
		key, ok := keys.Bearer(header)
		if key.Tenant != want || ok != (want != "") || ok && len(key.ID) != 16 {
			t.Errorf("Bearer(%q) = %+v, %v, want %q", header, key, ok, want)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"", "the file has no keys"},
		{"# nothing\n", "the file has no keys"},
		{"- a\n- b\n", `line 1: want "tenant: key" lines`},
		{"acme: x\nbeta: y\nacme: z\n", "[3:1] mapping key \"acme\" already defined at [1:1]"},
		{"acme: x\n\"acme\": z\n", "already defined"},
		{"acme: x\n---\nbeta: z\n", "several documents"},
		{"acme: secret\n\tbeta: secret\n", "[2:1]"},
		{"acme: x\nbeta: x\n", `line 2: tenants "acme" and "beta" have the same key`},
		{"acme: x\nbeta: " + Hash("x") + "\n", `line 2: tenants "acme" and "beta" have the same key`},
		{"acme: sha256:12\n", "line 1: the hash of"},
		{strings.Repeat("x", 257) + ": y\n", "line 1: the tenant's name has 257 bytes, at most 256"},
		{"acme:\n", "line 1: the key of"},
		{"acme: ''\n", "line 1: the key of"},
		{"acme: x\nbeta: [1]\n", "line 2: the key of"},
		{"acme: {a: b}\n", "line 1: the key of"},
		{"a: b: c\n", "api keys: "},
		{"\tacme: x\n", "api keys: "},
	} {
		if _, err := Parse([]byte(c.yaml)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%q) = %v, want %q", c.yaml, err, c.want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a key: %v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("acme: x\n")
	f.Add("acme: sha256:12\n---\n&a b: *a\n")
	f.Add("<<: {a: b}\n? a\n: b\n")
	f.Fuzz(func(t *testing.T, yaml string) {
		keys, err := Parse([]byte(yaml))
		if (keys == nil) == (err == nil) {
			t.Errorf("Parse(%q) = %v, %v", yaml, keys, err)
		}
	})
}
