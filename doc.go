// Package penstock is admission control for LLM inference on your own GPUs.
//
// The program is one sentence: metrics, state, decision, result.
//
//	client ── HTTP ──> gateway ── open ──> registry (the record, the door)
//	                      │  publish
//	                      v
//	                    queue: one lane per tier, type, model, pool, tenant
//	                      │  delivery, one head per lane
//	                      v
//	scraper ── Sample ──> agent ── Decide ──> scheduler (pure: values in, verdict out)
//	   ^                  │ Start: reserve, claim
//	   │ every 50 ms      v
//	 vLLM <── request ── vllm client ── chunks ──> response ──> gateway ── SSE ──> client
//
// Data flows one way; adapters (scraper, vllm, queue/..., registry/...,
// response/...) never import each other; agent and gateway wire them and cmd
// wires those two. layout_test.go holds the import table as code.
package penstock
