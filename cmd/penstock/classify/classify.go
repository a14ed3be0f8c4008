// Package classify says of a request what a gateway with a policy would make of it: rules,
// tier, lane, limits, and where else it may go.
package classify

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
	"penstock/cost"
	"penstock/gateway/headers"
	"penstock/gateway/openai"
	"penstock/policy"
	"penstock/policy/lanes"
	"penstock/quota"
	"penstock/reason"
)

// Kinds are the types of requests by the path they come by.
var Kinds = map[string]string{"/v1/chat/completions": "chat", "/v1/completions": "completion", "/v1/embeddings": openai.Embedding}

// Answer is what penstock classify says of a request.
type Answer struct {
	APIVersion string         `json:"apiVersion"`
	Policy     string         `json:"policy"` // its hash
	Outcome    reason.Reason  `json:"outcome"`
	Tenant     string         `json:"tenant"`
	Rules      []policy.Tried `json:"rules"` // those looked at; the last one holds where it misses nothing
	Rule       string         `json:"rule,omitempty"`
	Tier       string         `json:"tier"`
	TierBy     string         `json:"tier_by"`
	Capped     bool           `json:"capped"` // the tier is the highest of the tenant, who asked for more
	Type       string         `json:"type"`
	Model      string         `json:"model"`
	ModelBy    string         `json:"model_by"`
	Pool       string         `json:"pool"`
	Lane       string         `json:"lane"`
	Prompt     int            `json:"prompt_tokens"` // estimated
	Limits     []string       `json:"limits"`
	Limit      lanes.Limits   `json:"lane_limits"`
	Filters    []hop          `json:"filters"`   // lanes it goes through first
	Reroutes   []hop          `json:"reroutes"`  // where it goes that its lane does not serve; one of them, once
	Downgrade  *hop           `json:"downgrade"` // where it goes that its lane is too full for; null: nowhere
}

// hop is a lane beside the request's own.
type hop struct {
	On   string `json:"on,omitempty"` // what sends it there
	By   string `json:"by"`           // the filter, the reroute, or who allows the downgrade
	Lane string `json:"lane"`
}

// Request does what a gateway does between a request's arrival and its lane.
// The path is one of Kinds; what a gateway answers 400 or 401 is a usage error.
func Request(p *policy.Policy, headers http.Header, path string, body []byte) (*Answer, error) {
	kind := Kinds[path]
	who, ok := p.Who(headers.Get("Authorization"))
	if !ok {
		return nil, exit.Usagef("the key is not one of the policy's tenants: a gateway answers 401. Name one with --key")
	}
	request, bad := openai.Parse(kind, body)
	if bad != nil {
		return nil, exit.Usagef("the request on standard input: %s A gateway answers 400", bad.Message)
	}
	estimate, err := cost.New(cost.DefaultConfig())
	if err != nil {
		return nil, err
	}
	prompt := request.TokenIDs
	if request.TextBytes > 0 || request.Images > 0 || prompt == 0 {
		prompt += estimate.Prompt(request.Model, request.TextBytes, request.Images)
	}
	r := &policy.Request{
		ID: "classify", Tenant: &who, Path: path, Type: kind, Model: request.Model, Stream: request.Stream, Prompt: prompt, Max: request.MaxTokens,
		Headers: headers, Tools: request.Tools, Images: request.Images > 0, SystemBytes: request.SystemBytes, Priority: request.Priority,
		ServiceTier: request.ServiceTier, Body: body,
	}
	d := p.Classify(r)
	c := &Answer{
		APIVersion: "penstock/v1", Policy: p.Hash, Outcome: d.Reason, Tenant: who.Name, Rules: p.Explain(r), Rule: p.RuleName(d.Rule),
		Tier: d.Lane.Tier, TierBy: d.TierBy.String(), Capped: d.Capped, Type: d.Lane.Type, Model: d.Lane.Model, ModelBy: d.ModelBy.String(),
		Pool: d.Lane.Pool, Lane: d.Lane.String(), Prompt: prompt, Limits: []string{}, Filters: []hop{}, Reroutes: []hop{},
	}
	if d.Reason != reason.OK {
		return c, nil
	}
	c.Limit = p.Lane(d.Lane)
	for _, l := range p.Limits(nil, &who, d.Lane.Model, d.Tier) {
		c.Limits = append(c.Limits, limitText(&l))
	}
	return c, c.onward(p, r, d)
}

// onward says which other lanes the request may come to.
func (c *Answer) onward(p *policy.Policy, r *policy.Request, d policy.Decision) error {
	for _, f := range p.Filters(r) {
		c.Filters = append(c.Filters, hop{By: f.Name, Lane: f.Lane(p, d, r).String()})
	}
	for _, trouble := range p.Troubles() {
		if name, to, ok := p.Reroute(d, trouble, r); ok {
			c.Reroutes = append(c.Reroutes, hop{trouble.String(), name, to.Lane.String()})
		}
	}
	wish, wrong := headers.ParseWish(r.Headers)
	if wrong != "" {
		return exit.Usagef("%s A gateway answers 400", wrong)
	}
	if to, ok := p.Downgrade(d, r.Tenant, wish); ok {
		by := "the tenant"
		if wish == policy.MayDowngrade {
			by = "the header x-penstock-downgrade"
		}
		c.Downgrade = &hop{"server_is_overloaded, lane_full", by, to.Lane.String()}
	}
	return nil
}

// limitText is a quota in words.
func limitText(l *quota.Limit) string {
	whose := map[string]string{quota.Key: "this key", quota.Tenant: "the tenant", quota.Model: "the tenant, for this model", quota.Tier: "all tenants together"}[l.Scope]
	text := fmt.Sprintf("%d %s per %s for %s", l.Amount, l.Unit, l.Per, whose)
	if l.Own > 0 {
		text += fmt.Sprintf(", %d of them for tier %s alone", l.Own, l.Slice)
	}
	return text
}

// Write says it as output, text or json, has it.
func (c *Answer) Write(w io.Writer, output string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(c)
	}
	t := show.Table(w, "WHAT", "IS", "BECAUSE")
	show.Row(t, "tenant", c.Tenant, "")
	for _, tried := range c.Rules {
		if tried.Misses != "" {
			show.Row(t, "rule", tried.Rule, "no: "+tried.Misses)
		} else {
			show.Row(t, "rule", tried.Rule, "holds")
		}
	}
	switch c.Outcome {
	case reason.Forbidden:
		show.Row(t, "answer", "403", "the tenant may not use the model "+c.Model)
		return t.Flush()
	case reason.BadRequest:
		show.Row(t, "answer", "400", "x-penstock-tier names no tier of the policy")
		return t.Flush()
	}
	why := "by " + c.TierBy
	if c.Capped {
		why += ", which asks for more than the tenant has"
	}
	show.Row(t, "tier", c.Tier, why)
	show.Row(t, "model", c.Model, "by "+c.ModelBy)
	show.Row(t, "lane", c.Lane, "tier/type/model/pool/tenant")
	show.Row(t, "concurrency", most(float64(c.Limit.Concurrency)), "requests of the lane that run at once on one engine")
	show.Row(t, "starts per second", most(c.Limit.StartsPerSecond), "of the lane, on all engines")
	show.Row(t, "most requests", most(float64(c.Limit.MaxRequests)), "of the lane that wait and run")
	for _, l := range c.Limits {
		show.Row(t, "quota", l, "")
	}
	for _, f := range c.Filters {
		show.Row(t, "first", f.Lane, "by the filter "+f.By)
	}
	for _, h := range c.Reroutes {
		show.Row(t, "on "+h.On, h.Lane, "by the reroute "+h.By)
	}
	if c.Downgrade != nil {
		show.Row(t, "where it is full", c.Downgrade.Lane, "allowed by "+c.Downgrade.By)
	}
	return t.Flush()
}

// most is a limit, or that there is none.
func most(n float64) string {
	if n == 0 {
		return "not limited"
	}
	return fmt.Sprintf("%g", n)
}
