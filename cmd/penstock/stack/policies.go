package stack

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/agent/control"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/fleet"
	"penstock/lane"
	"penstock/policy"
	"penstock/policy/source"
	"penstock/policy/source/nacos"
	policyredis "penstock/policy/source/redis"
	"penstock/registry"
)

// policies is the policy in force: a source's, or what the flags say, which stays.
type policies struct {
	source *source.Source // nil: fixed
	fixed  *policy.Policy
	close  func() error // nil: nothing is to be closed
}

// newPolicies reads the policy for the first time. redis is where the key lies, nil
// where there is none.
func newPolicies(o *flags.Options, redis *policyredis.Config, log *slog.Logger, reg prometheus.Registerer) (*policies, error) {
	said := policy.Default(o.Tiers, o.DefaultTier).WithKeys(o.Keys)
	cfg := source.Config{Keys: o.Keys, NeedKeys: o.NeedKeys, Without: said, Optional: !o.PolicyNamed}
	p := &policies{}
	var at source.Place
	switch {
	case o.PolicyFile != "":
		at, cfg.Without = source.File{Path: o.PolicyFile}, nil
	case o.PolicyIn == flags.InRedis && redis != nil:
		key, err := policyredis.New(*redis)
		if err != nil {
			return nil, exit.Usagef("--redis: %w", err)
		}
		at, p.close = key, key.Close
	case o.PolicyIn == flags.InNacos:
		entry, err := nacos.New(o.Nacos)
		if err != nil {
			return nil, exit.Usagef("--policy: %w", err)
		}
		at, p.close = entry, entry.Close
	default:
		return &policies{fixed: said}, nil
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
