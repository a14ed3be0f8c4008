package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"penstock/agent/control"
	"penstock/cmd/penstock/exit"
	"penstock/fleet"
	"penstock/lane"
	"penstock/policy"
	"penstock/policy/source"
	"penstock/policy/source/nacos"
	policyredis "penstock/policy/source/redis"
	"penstock/registry"
)

// policyFlags are those of whoever goes by a policy; all processes of a fleet are given
// the same. fleet: they share a Redis.
func policyFlags(f *pflag.FlagSet, fleet bool) {
	text := "tenants, tiers, rules and lane limits, in place of --tiers and --default-tier: a file, or nacos://HOST:8848/DATAID?group=GROUP&namespace=ID"
	if fleet {
		text += `, or "redis:" for the key ` + policyredis.DefaultKey + " of --redis, which is also read where neither this nor --tiers is given"
	}
	f.String("policy", "", text+"; changes are taken over while it runs (see: penstock policy example)")
	f.String("policy-credentials-file", "", "file with the user and password of Nacos, a line each")
}

// Where a policy lies.
const (
	byFlags = ""
	inFile  = "file"
	inRedis = "redis"
	inNacos = "nacos"
)

// readPolicy reads --policy and what it stands in place of.
func (o *options) readPolicy(f *pflag.FlagSet) (err error) {
	text, _ := f.GetString("policy")
	credentials, _ := f.GetString("policy-credentials-file")
	byTiers := len(o.tiers) > 0 || o.defaultTier != ""
	if text != "" && byTiers {
		return fmt.Errorf("--policy %s and --tiers or --default-tier: a policy names the tiers, as its keys tiers and default-tier; move them there", text)
	}
	o.policyNamed = text != ""
	if o.policyIn, o.nacos, err = parsePlace(text, f.Lookup("redis") != nil); err != nil {
		return fmt.Errorf("--policy %q: %w", text, err)
	}
	if text == "" && byTiers {
		o.policyIn = byFlags
	}
	if credentials != "" && o.policyIn != inNacos {
		return fmt.Errorf("--policy-credentials-file %s without --policy nacos://…: it has the user and password of Nacos", credentials)
	}
	switch o.policyIn {
	case inNacos:
		o.nacos.CredentialsFile = credentials
		if err := o.nacos.Validate(); err != nil {
			return fmt.Errorf("--policy %q, --policy-credentials-file: %w", text, err)
		}
	case inFile:
		o.policyFile = text
		p, err := parsePolicy(text)
		if err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		if p.OwnKeys() && o.keys != nil {
			return fmt.Errorf("--policy %s and --api-keys: the policy's tenants have keys; keep all keys in one of the two files", text)
		}
		o.authenticates = p.OwnKeys()
	}
	return nil
}

// parsePlace says where the text of --policy or --to points.
func parsePlace(text string, fleet bool) (kind string, at nacos.Config, err error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch {
	case text == "" && fleet:
		return inRedis, at, nil
	case text == "":
		return byFlags, at, nil
	case scheme == "nacos" || scheme == "nacoss":
		at, err = nacos.ParseURL(text)
		return inNacos, at, err
	case scheme != "redis" && scheme != "rediss":
		return inFile, at, nil
	case !fleet:
		return "", at, errors.New("standalone has no Redis: give a file or nacos://HOST:8848/DATAID")
	case scheme != "redis" || rest != "":
		return "", at, errors.New("want redis: alone; the address is that of --redis")
	}
	return inRedis, at, nil
}

// policies is the policy in force: a source's, or what the flags say, which stays.
type policies struct {
	source *source.Source // nil: fixed
	fixed  *policy.Policy
	close  func() error // nil: nothing is to be closed
}

// newPolicies reads the policy for the first time. redis is where the key lies, nil
// where there is none.
func newPolicies(o *options, redis *policyredis.Config, log *slog.Logger, reg prometheus.Registerer) (*policies, error) {
	flags := policy.Default(o.tiers, o.defaultTier).WithKeys(o.keys)
	cfg := source.Config{Keys: o.keys, NeedKeys: o.needKeys, Without: flags, Optional: !o.policyNamed}
	p := &policies{}
	var at source.Place
	switch {
	case o.policyFile != "":
		at, cfg.Without = source.File{Path: o.policyFile}, nil
	case o.policyIn == inRedis && redis != nil:
		key, err := policyredis.New(*redis)
		if err != nil {
			return nil, exit.Usagef("--redis: %w", err)
		}
		at, p.close = key, key.Close
	case o.policyIn == inNacos:
		entry, err := nacos.New(o.nacos)
		if err != nil {
			return nil, exit.Usagef("--policy: %w", err)
		}
		at, p.close = entry, entry.Close
	default:
		return &policies{fixed: flags}, nil
	}
	var err error
	if p.source, err = source.New(cfg, at, log, reg); err != nil {
		return nil, exit.Usagef("--policy: %w", err)
	}
	return p, nil
}

func (p *policies) Current() *policy.Policy {
	if p.source == nil {
		return p.fixed
	}
	return p.source.Current()
}

// OnChange has changed called with each new policy.
func (p *policies) OnChange(changed func(*policy.Policy)) {
	if p.source != nil {
		p.source.OnChange(changed)
	}
}

func (p *policies) Run(ctx context.Context) error {
	if p.source == nil {
		<-ctx.Done()
		return nil
	}
	err := p.source.Run(ctx)
	if p.close != nil {
		err = errors.Join(err, p.close())
	}
	return err
}

// Ready says whether it is known who may do what.
func (p *policies) Ready() (bool, string) {
	if p.source == nil {
		return true, ""
	}
	return p.source.Ready()
}

// State is for /debug/state and penstock status.
func (p *policies) State() source.State {
	if p.source == nil {
		return source.State{Source: "flags"}
	}
	return p.source.State()
}

// Row is r with the policy that its process goes by.
func (p *policies) Row(r fleet.Row) fleet.Row {
	r.Policy = fleet.Policy(p.Current().Hash)
	return r
}

// Control is State for penstock status.
func (p *policies) Control() control.Policy {
	s := p.State()
	return control.Policy{Source: s.Source, Hash: s.Hash, Newest: s.Newest, Age: s.Age, Problem: s.Problem}
}

// Rank is a tier's place, as the record stores want it.
func (p *policies) Rank(tier string) int { return p.Current().Rank(tier) }

// Pace is the most starts per second of a lane.
func (p *policies) Pace(k lane.Key) float64 { return p.Current().Lane(k).StartsPerSecond }

// Bounds are those of a lane in the record store.
func (p *policies) Bounds(k lane.Key) registry.Bounds {
	l := p.Current().Lane(k)
	return registry.Bounds{Requests: l.MaxRequests, Bytes: l.MaxBytes, Width: l.Width}
}

// Concurrency is how many requests of a lane may run on one engine.
func (p *policies) Concurrency(k lane.Key) int { return p.Current().Lane(k).Concurrency }

// Limits are the two of a lane that hold back what could start.
func (p *policies) Limits(k lane.Key) (concurrency int, pace float64) {
	l := p.Current().Lane(k)
	return l.Concurrency, l.StartsPerSecond
}

// Tiers are those in force.
func (p *policies) Tiers() []policy.Tier { return p.Current().Tiers }
