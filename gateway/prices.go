package gateway

import (
	"sync"

	"penstock/cost"
	"penstock/gateway/openai"
	"penstock/response"
)

// prices shares the estimator between requests.
type prices struct {
	mu       sync.Mutex
	estimate *cost.Estimator // guarded by mu; a call takes about a microsecond
}

// quote is the expected prompt tokens, all prompts together, and the expected
// output tokens of one sequence.
func (p *prices) quote(tenant string, r *openai.Request) (prompt, output int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	prompt = r.TokenIDs
	if r.TextBytes > 0 || r.Images > 0 || prompt == 0 {
		prompt += p.estimate.Prompt(r.Model, r.TextBytes, r.Images)
	}
	if r.Kind != openai.Embedding {
		output = p.estimate.Output(cost.Class{Tenant: tenant, Model: r.Model}, r.MaxTokens)
	}
	return prompt, output
}

// missed is how far an estimate was off: estimated over counted tokens; 0 = not known.
type missed struct{ prompt, output float64 }

// learn takes in what a finished request really used, and says how far it was from
// what it would have been quoted a moment before.
func (p *prices) learn(tenant string, r *openai.Request, used response.Usage) (m missed) {
	class, each := cost.Class{Tenant: tenant, Model: r.Model}, used.Output/max(r.Sequences, 1)
	prompt := used.Prompt
	if r.TokenIDs > 0 {
		prompt = 0 // says nothing about bytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if prompt > 0 {
		m.prompt = float64(p.estimate.Prompt(r.Model, r.TextBytes, r.Images)) / float64(prompt)
	}
	if r.Kind != openai.Embedding {
		m.output = float64(p.estimate.Output(class, r.MaxTokens)) / float64(max(each, 1))
	}
	p.estimate.Learn(class, r.TextBytes, r.Images, prompt, each)
	return m
}
