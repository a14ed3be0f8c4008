package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"penstock/lane"
	"penstock/policy"
	"penstock/policy/source"
	"penstock/registry"
)

// policyFlag is that of whoever goes by a policy; all processes of a fleet are given
// the same.
func policyFlag(f *pflag.FlagSet) {
	f.String("policy", "", "file of tenants, tiers, rules and lane limits, in place of --tiers and --default-tier; read again when it changes and at SIGHUP (see: penstock policy example)")
}

// readPolicy reads --policy and what it stands in place of.
func (o *options) readPolicy(f *pflag.FlagSet) error {
	o.policyFile, _ = f.GetString("policy")
	if o.policyFile == "" {
		return nil
	}
	if len(o.tiers) > 0 || o.defaultTier != "" {
		return fmt.Errorf("--policy %s and --tiers or --default-tier: a policy names the tiers, as its keys tiers and default-tier; move them there", o.policyFile)
	}
	text, err := os.ReadFile(o.policyFile)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	p, err := policy.Parse(text)
	if err != nil {
		return fmt.Errorf("--policy %s: %w", o.policyFile, err)
	}
	if p.OwnKeys() && o.keys != nil {
		return fmt.Errorf("--policy %s and --api-keys: the policy's tenants have keys; keep all keys in one of the two files", o.policyFile)
	}
	o.authenticates = p.OwnKeys()
	return nil
}

// policies is the policy in force: a file's, or what the flags say, which stays.
type policies struct {
	file  *source.File // nil: fixed
	fixed *policy.Policy
}

func newPolicies(o *options, log *slog.Logger, reg prometheus.Registerer) (*policies, error) {
	if o.policyFile == "" {
		return &policies{fixed: policy.Default(o.tiers, o.defaultTier).WithKeys(o.keys)}, nil
	}
	file, err := source.New(source.Config{Path: o.policyFile, Keys: o.keys}, log, reg)
	if err != nil {
		return nil, usage("--policy: %w", err)
	}
	return &policies{file: file}, nil
}

func (p *policies) Current() *policy.Policy {
	if p.file == nil {
		return p.fixed
	}
	return p.file.Current()
}

// OnChange has changed called with each new policy.
func (p *policies) OnChange(changed func(*policy.Policy)) {
	if p.file != nil {
		p.file.OnChange(changed)
	}
}

func (p *policies) Run(ctx context.Context) error {
	if p.file == nil {
		<-ctx.Done()
		return nil
	}
	return p.file.Run(ctx)
}

// Reload reads the file now, then has others read theirs; the first error ends it.
func (p *policies) Reload(others ...func() error) error {
	if p.file != nil {
		if err := p.file.Reload(); err != nil {
			return err
		}
	}
	for _, reload := range others {
		if err := reload(); err != nil {
			return err
		}
	}
	return nil
}

// State is for /debug/state.
func (p *policies) State() source.State {
	if p.file == nil {
		return source.State{File: "none: by flags"}
	}
	return p.file.State()
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

// Tiers are those in force.
func (p *policies) Tiers() []policy.Tier { return p.Current().Tiers }
