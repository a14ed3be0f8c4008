package quotas

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/policy/document"
	"penstock/quota"
)

// parse reads quotas from a file with nothing else: of all, and of the tenant x.
func parse(text string) (Shared, Tenant, error) {
	var f struct {
		Quota   File                  `yaml:"quota"`
		Tenants map[string]FileTenant `yaml:"tenants"`
	}
	d, err := document.Read([]byte(text), &f)
	if err != nil {
		return Shared{}, Tenant{}, err
	}
	x := f.Tenants["x"]
	s := ReadShared(d, &f.Quota, make([]Slice, 1))
	t := s.ReadTenant(d, []any{"tenants", "x"}, "x", &x)
	return s, t, errors.Join(d.Problems()...)
}

// TestTenant: the most exact pattern of a model holds alone, keys have buckets of their
// own, and so has a tenant that is held to another's entry.
func TestTenant(t *testing.T) {
	_, x, err := parse("tenants: {x: {quota: {tokens-per-minute: 5}, key-quota: {requests-per-minute: 1}, model-quota: {\"q*\": {tokens-per-minute: 3}, q72: {tokens-per-minute: 2}}}}")
	if err != nil {
		t.Fatal(err)
	}
	of := func(scope, bucket string, unit quota.Unit, amount int64) quota.Limit {
		return quota.Limit{Scope: scope, Bucket: bucket, Unit: unit, Amount: amount, Per: time.Minute}
	}
	for _, c := range []struct {
		tenant, key, model string
		want               []quota.Limit
	}{
		{"x", "", "m", []quota.Limit{of(quota.Tenant, "x", quota.Tokens, 5)}},
		{"x", "k", "m", []quota.Limit{of(quota.Tenant, "x", quota.Tokens, 5), of(quota.Key, "k", quota.Requests, 1)}},
		{"x", "", "q72", []quota.Limit{of(quota.Tenant, "x", quota.Tokens, 5), of(quota.Model, "x\x00q72", quota.Tokens, 2)}},
		{"other", "", "q7", []quota.Limit{of(quota.Tenant, "other", quota.Tokens, 5), of(quota.Model, "other\x00q*", quota.Tokens, 3)}},
	} {
		if diff := cmp.Diff(c.want, x.Limits(nil, c.tenant, c.key, c.model)); diff != "" {
			t.Errorf("%q with key %q for %q (-want +got)\n%s", c.tenant, c.key, c.model, diff)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"negative quota", "tenants: {x: {quota: {tokens-per-minute: -1}}}\n", "amount is -1"},
		{"window without per", "quota: {windows: [{tokens: 5}]}\n", "write one of tokens and requests, and per"},
		{"the same window twice", "quota: {windows: [{tokens: 5, per: 1h}, {requests: 5, per: 1h}, {tokens: 7, per: 1h}]}\n", "a second window of 1h0m0s of the same kind"},
		{"too many limits", "tenants: {x: {quota: {windows: [{tokens: 1, per: 1h}, {tokens: 1, per: 2h}, {tokens: 1, per: 3h}, {tokens: 1, per: 4h}, {tokens: 1, per: 5h}, {tokens: 1, per: 6h}, {tokens: 1, per: 7h}, {tokens: 1, per: 8h}, {tokens: 1, per: 9h}]}}}\n", "held to 9 limits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, err := parse(c.yaml); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
