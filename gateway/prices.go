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

// learn takes in what a finished request really used.
func (p *prices) learn(tenant string, r *openai.Request, used response.Usage) {
	prompt := used.Prompt
	if r.TokenIDs > 0 {
		prompt = 0 // says nothing about bytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.estimate.Learn(cost.Class{Tenant: tenant, Model: r.Model}, r.TextBytes, r.Images, prompt, used.Output/max(r.Sequences, 1))
}
