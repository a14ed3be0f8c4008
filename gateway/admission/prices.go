package admission

import (
	"penstock/cost"
	"penstock/gateway/openai"
	"penstock/response"
)

// Quote is the expected prompt tokens, all prompts together, and the expected
// output tokens of one sequence.
func (d *Door) Quote(tenant string, r *openai.Request) (prompt, output int) {
	d.pricing.Lock()
	defer d.pricing.Unlock()
	prompt = r.TokenIDs
	if r.TextBytes > 0 || r.Images > 0 || prompt == 0 {
		prompt += d.estimate.Prompt(r.Model, r.TextBytes, r.Images)
	}
	if r.Kind != openai.Embedding {
		output = d.estimate.Output(cost.Class{Tenant: tenant, Model: r.Model}, r.MaxTokens)
	}
	return prompt, output
}

// Missed is how far an estimate was off: estimated over counted tokens; 0 = not known.
type Missed struct{ Prompt, Output float64 }

// Learn takes in what a finished request really used, and says how far it was from
// what it would have been quoted a moment before.
func (d *Door) Learn(tenant string, r *openai.Request, used response.Usage) (m Missed) {
	class, each := cost.Class{Tenant: tenant, Model: r.Model}, used.Output/max(r.Sequences, 1)
	prompt := used.Prompt
	if r.TokenIDs > 0 {
		prompt = 0 // says nothing about bytes
	}
	d.pricing.Lock()
	defer d.pricing.Unlock()
	if prompt > 0 {
		m.Prompt = float64(d.estimate.Prompt(r.Model, r.TextBytes, r.Images)) / float64(prompt)
	}
	if r.Kind != openai.Embedding {
		m.Output = float64(d.estimate.Output(class, r.MaxTokens)) / float64(max(each, 1))
	}
	d.estimate.Learn(class, r.TextBytes, r.Images, prompt, each)
	return m
}
