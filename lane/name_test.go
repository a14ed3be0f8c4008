package lane

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var valid = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

func TestName(t *testing.T) {
	secret := []byte("s")
	for _, tc := range []struct {
		name  string
		key   Key
		shard int
		want  string // the start of it
	}{
		{"usual", Key{Tier: "gold", Type: "chat", Model: "qwen2.5/7b", Tenant: "acme"}, 3, "gold-qwen2_5_7b-"},
		{"long tier and model", Key{Tier: "platinum-plus", Model: "meta-llama/Llama-3.1-405B"}, 99_999, "platinum-meta_llama_llama-"},
		{"empty", Key{}, 0, "--"},
		{"hostile", Key{Tier: "../", Model: "\x00\n", Tenant: strings.Repeat("x", 10_000)}, 0, "___-__-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Name(secret, tc.key, tc.shard)
			if !strings.HasPrefix(got, tc.want) || !valid.MatchString(got) {
				t.Errorf("Name = %q, want %q… and only %v", got, tc.want, valid)
			}
			if again := Name(secret, tc.key, tc.shard); again != got {
				t.Errorf("the second time %q, the first %q", again, got)
			}
		})
	}
}

// TestNameStays holds the name itself: processes of two versions must agree on it.
func TestNameStays(t *testing.T) {
	got := Name([]byte("secret"), Key{Tier: "gold", Type: "chat", Model: "m", Pool: "h200", Tenant: "acme"}, 7)
	if want := "gold-m-nkkfztbugppocbq7vpsgu4sn7a-7"; got != want {
		t.Errorf("Name = %q, want %q", got, want)
	}
}

func TestNamesDiffer(t *testing.T) {
	base := Key{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "e"}
	seen := map[string]Key{}
	for _, k := range []Key{
		base,
		{Tier: "ab", Type: "", Model: "c", Pool: "d", Tenant: "e"}, // a boundary moved
		{Tier: "a", Type: "b", Model: "cd", Pool: "", Tenant: "e"},
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "e\x00"},
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "E"},
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "\u00e9"},  // one code point
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "e\u0301"}, // two
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "\xff"},
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "\ufffd"},
	} {
		name := Name(nil, k, 0)
		if other, twice := seen[name]; twice {
			t.Errorf("%q and %q are both %s", k, other, name)
		}
		seen[name] = k
	}
	if Name([]byte("1"), base, 0) == Name([]byte("2"), base, 0) {
		t.Error("two secrets make one name")
	}
	if Name(nil, base, 0) == Name(nil, base, 1) {
		t.Error("two shards have one name")
	}
	if Name(nil, base, -1) != Name(nil, base, 0) || Name(nil, base, MaxWidth) != Name(nil, base, MaxWidth-1) {
		t.Error("a shard outside the range is not the nearer end")
	}
}

func TestNameProperty(t *testing.T) {
	part := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ab/]{0,2}`), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	key := rapid.Custom(func(t *rapid.T) Key {
		return Key{part.Draw(t, "tier"), part.Draw(t, "type"), part.Draw(t, "model"), part.Draw(t, "pool"), part.Draw(t, "tenant")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := key.Draw(t, "a"), key.Draw(t, "b")
		i, j := rapid.IntRange(0, MaxWidth-1).Draw(t, "i"), rapid.IntRange(0, MaxWidth-1).Draw(t, "j")
		na, nb := Name(nil, a, i), Name(nil, b, j)
		if !valid.MatchString(na) {
			t.Fatalf("Name(%q, %d) = %q", a, i, na)
		}
		if same := a == b && i == j; (na == nb) != same {
			t.Fatalf("Name(%q, %d) = %q and Name(%q, %d) = %q", a, i, na, b, j, nb)
		}
	})
}

func BenchmarkName(b *testing.B) {
	k := Key{Tier: "gold", Type: "chat", Model: "qwen2.5/7b", Tenant: "acme"}
	b.ReportAllocs()
	for b.Loop() {
		Name([]byte("secret"), k, 7)
	}
}
