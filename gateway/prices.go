package gateway

import (
	"sync"

	"penstock/cost"
	"penstock/response"
)

// prices shares the estimator between requests.
type prices struct {
	mu       sync.Mutex
	estimate *cost.Estimator // guarded by mu; a call takes about a microsecond
}

// quote is the expected prompt tokens, all prompts together, and the expected
// output tokens of one sequence.
func (p *prices) quote(tenant string, r *request) (prompt, output int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	prompt = r.tokenIDs
	if r.textBytes > 0 || r.images > 0 || prompt == 0 {
		prompt += p.estimate.Prompt(r.model, r.textBytes, r.images)
	}
	if r.kind != embedding {
		output = p.estimate.Output(cost.Class{Tenant: tenant, Model: r.model}, r.maxTokens)
	}
	return prompt, output
}

// learn takes in what a finished request really used.
func (p *prices) learn(tenant string, r *request, used response.Usage) {
	prompt := used.Prompt
	if r.tokenIDs > 0 {
		prompt = 0 // says nothing about bytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.estimate.Learn(cost.Class{Tenant: tenant, Model: r.model}, r.textBytes, r.images, prompt, used.Output/max(r.sequences, 1))
}
