package gateway

import (
	"fmt"
	"strings"
	"time"

	"penstock/gateway/headers"
	"penstock/gateway/refuse"
	"penstock/policy"
	"penstock/reason"
)

// SetPolicy makes what comes from now on go by p; what came before goes on by what was
// then. Any goroutine may call it.
func (g *Gateway) SetPolicy(p *policy.Policy) {
	g.metrics.AddTiers(p.TierNames())
	g.policy.Store(p)
}

// classify puts the request into its lane.
func (x *exchange) classify() *refuse.Refusal {
	p := &x.request
	prompt, _ := x.g.door.Quote(x.who.Name, p)
	x.asked = p.Model
	x.asking = policy.Request{
		ID: x.id, Tenant: &x.who, Path: x.path, Type: p.Kind, Model: p.Model, Stream: p.Stream, Prompt: prompt, Max: p.MaxTokens, Headers: x.r.Header,
		Tools: p.Tools, Images: p.Images > 0, SystemBytes: p.SystemBytes, Priority: p.Priority, ServiceTier: p.ServiceTier, Body: p.Body,
	}
	x.class = x.policy.Classify(&x.asking)
	switch x.class.Reason {
	case reason.OK:
	case reason.Forbidden:
		return &refuse.Refusal{Reason: reason.Forbidden, Model: p.Model, Param: "model", Detail: fmt.Sprintf("This API key may not use the model '%s'. GET /v1/models lists what it may.", p.Model)}
	default:
		x.class.Tier, x.class.Lane.Tier = 0, x.policy.DefaultTier()
		return &refuse.Refusal{Reason: reason.BadRequest, Detail: fmt.Sprintf("The header x-penstock-tier is %q. Send one of: %s.", headers.Cut(x.r.Header.Get("X-Penstock-Tier")), strings.Join(x.policy.TierNames(), ", "))}
	}
	x.onward.filters = x.policy.Filters(&x.asking)
	x.asking.Body = nil // nothing looks into it again, and it may be the second copy
	x.rename()
	return nil
}

// rename names the model of the lane in the body.
func (x *exchange) rename() {
	if model := x.class.Lane.Model; model != x.request.Model {
		x.request.Rename(model)
	}
}

// ownLimits are those of a request that names none: the tenant's, the tier's, the
// gateway's.
func (x *exchange) ownLimits() headers.Limits {
	cfg, t := &x.g.cfg, &x.policy.Tiers[x.class.Tier]
	l := headers.Limits{Deadline: cfg.Deadline, TTFT: cfg.SLOTTFT, TPOT: cfg.SLOTPOT}
	if t.SLOTTFT > 0 {
		l.TTFT = t.SLOTTFT
		l.Deadline = max(l.Deadline, t.SLOTTFT) // else it could not be used up
	}
	if t.SLOTPOT > 0 {
		l.TPOT = t.SLOTPOT
	}
	if x.who.Deadline > 0 {
		l.Deadline = x.who.Deadline
	}
	l.Deadline = min(l.Deadline, x.maxDeadline())
	return l
}

// maxDeadline is the longest start deadline the tenant may name.
func (x *exchange) maxDeadline() time.Duration {
	if x.who.MaxDeadline > 0 {
		return min(x.who.MaxDeadline, x.g.cfg.MaxDeadline)
	}
	return x.g.cfg.MaxDeadline
}
