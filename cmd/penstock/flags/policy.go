package flags

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"penstock/cmd/penstock/exit"
	"penstock/policy"
	"penstock/policy/source/nacos"
	policyredis "penstock/policy/source/redis"
)

// AddPolicy adds the flags of whoever goes by a policy; all processes of a fleet are given
// the same. fleet: they share a Redis.
func AddPolicy(f *pflag.FlagSet, fleet bool) {
	text := "tenants, tiers, rules and lane limits, in place of --tiers and --default-tier: a file, or nacos://HOST:8848/DATAID?group=GROUP&namespace=ID"
	if fleet {
		text += `, or "redis:" for the key ` + policyredis.DefaultKey + " of --redis, which is also read where neither this nor --tiers is given"
	}
	f.String("policy", "", text+"; changes are taken over while it runs (see: penstock policy example)")
	f.String("policy-credentials-file", "", "file with the user and password of Nacos, a line each")
}

// Where a policy lies: PolicyIn, and what Place finds.
const (
	ByFlags = ""
	InFile  = "file"
	InRedis = "redis"
	InNacos = "nacos"
)

// readPolicy reads --policy and what it stands in place of.
func (o *Options) readPolicy(f *pflag.FlagSet) (err error) {
	text, _ := f.GetString("policy")
	credentials, _ := f.GetString("policy-credentials-file")
	byTiers := len(o.Tiers) > 0 || o.DefaultTier != ""
	if text != "" && byTiers {
		return fmt.Errorf("--policy %s and --tiers or --default-tier: a policy names the tiers, as its keys tiers and default-tier; move them there", text)
	}
	o.PolicyNamed = text != ""
	if o.PolicyIn, o.Nacos, err = Place(text, f.Lookup("redis") != nil); err != nil {
		return fmt.Errorf("--policy %q: %w", text, err)
	}
	if text == "" && byTiers {
		o.PolicyIn = ByFlags
	}
	if credentials != "" && o.PolicyIn != InNacos {
		return fmt.Errorf("--policy-credentials-file %s without --policy nacos://…: it has the user and password of Nacos", credentials)
	}
	switch o.PolicyIn {
	case InNacos:
		o.Nacos.CredentialsFile = credentials
		if err := o.Nacos.Validate(); err != nil {
			return fmt.Errorf("--policy %q, --policy-credentials-file: %w", text, err)
		}
	case InFile:
		o.PolicyFile = text
		p, err := ParsePolicy(text)
		if err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		if p.OwnKeys() && o.Keys != nil {
			return fmt.Errorf("--policy %s and --api-keys: the policy's tenants have keys; keep all keys in one of the two files", text)
		}
		o.authenticates = p.OwnKeys()
	}
	return nil
}

// Place says where the text of --policy or --to points.
func Place(text string, fleet bool) (kind string, at nacos.Config, err error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch {
	case text == "" && fleet:
		return InRedis, at, nil
	case text == "":
		return ByFlags, at, nil
	case scheme == "nacos" || scheme == "nacoss":
		at, err = nacos.ParseURL(text)
		return InNacos, at, err
	case scheme != "redis" && scheme != "rediss":
		return InFile, at, nil
	case !fleet:
		return "", at, errors.New("standalone has no Redis: give a file or nacos://HOST:8848/DATAID")
	case scheme != "redis" || rest != "":
		return "", at, errors.New("want redis: alone; the address is that of --redis")
	}
	return InRedis, at, nil
}

// ParsePolicy reads a policy's file; what is wrong with it is a usage error.
func ParsePolicy(file string) (*policy.Policy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	p, err := policy.Parse(text)
	if err != nil {
		return nil, exit.Usagef("%s: %w", file, err)
	}
	return p, nil
}
