package sim

import (
	"cmp"
	"slices"
	"time"

	"penstock/sim/engine"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// capacity is what one engine of a profile does of a workload when it never waits
// for work and lengths are known: load 1.
type capacity struct {
	requests float64 // per second
	tokens   float64 // per second, prompt and output
	prefill  float64 // prompt tokens per second, alone
	output   float64 // mean output of a request
}

// saturate runs an engine in a closed loop: the next request goes in once the batch
// with it would fit until all have ended (the exact peak, 0.05 kept free) and less
// than 4,096 prompt tokens are pending.
func saturate(p *world.Profile, arrivals []traces.Arrival, warm, span time.Duration) (capacity, error) {
	const pendingMost, free = 4096, 0.05
	e, err := engine.New(p.Engine)
	if err != nil {
		return capacity{}, err
	}
	room := int((1 - free) * float64(p.Engine.Capacity()))
	running := map[uint64]*job{}
	var c capacity
	var now time.Duration
	pending, next, requests, tokens := 0, 0, 0, 0
	for now < warm+span {
		for {
			r := arrivals[next%len(arrivals)]
			j := &job{held: r.Prompt, left: r.Output, prompt: r.Prompt}
			if len(running) > 0 && (pending > pendingMost || len(running) >= p.Engine.MaxSeqs || peak(running, j) > room) {
				break
			}
			running[uint64(next)] = j
			if err := e.Submit(engine.Request{ID: uint64(next), Prompt: r.Prompt, Output: r.Output, Prefix: traces.Lap(r.Prefix, next/len(arrivals))}); err != nil {
				return c, err
			}
			pending += r.Prompt
			next++
		}
		step := e.Step()
		now += max(step.Duration, time.Microsecond)
		for _, ev := range step.Events {
			j := running[ev.ID]
			if ev.Output == 1 {
				pending -= j.prompt
			}
			j.held, j.left = j.prompt+ev.Output, j.left-1
			if ev.Kind == engine.Finished {
				delete(running, ev.ID)
				if now > warm {
					requests++
					tokens += j.prompt + ev.Output
				}
			}
		}
	}
	for _, r := range arrivals {
		c.output += float64(r.Output) / float64(len(arrivals))
	}
	took := (now - warm).Seconds()
	c.requests, c.tokens = float64(max(requests, 1))/took, float64(tokens)/took
	chunk := p.Engine.MaxBatchedTokens
	c.prefill = float64(chunk) / unloaded(&p.Engine, chunk).Seconds()
	return c, nil
}

// job is a request that runs: KV tokens it holds, tokens it has still to make.
type job struct{ prompt, held, left int }

// peak is the most KV tokens that all running and x hold at any time to come.
func peak(running map[uint64]*job, x *job) int {
	jobs := make([]*job, 0, len(running)+1)
	for _, j := range running {
		jobs = append(jobs, j)
	}
	jobs = append(jobs, x)
	slices.SortFunc(jobs, func(a, b *job) int { return cmp.Or(cmp.Compare(b.left, a.left), cmp.Compare(b.held, a.held)) })
	held, most := 0, 0
	for k, j := range jobs {
		held += j.held
		most = max(most, held+(k+1)*j.left)
	}
	return most
}
