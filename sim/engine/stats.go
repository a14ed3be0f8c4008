package engine

// Stats is what the engine tells about itself. The gauges are those of the end of
// the last step: between steps and while idle they stand still.
type Stats struct {
	Running int     // sequences in the batch
	Waiting int     // sequences queued or preempted
	KV      float64 // 1 - free/(Blocks-1), 0..1; what is only kept for reuse is free

	Steps            uint64 // steps with at least one output
	PromptTokens     uint64 // counted with the first output
	GenerationTokens uint64
	Finished         uint64
	Preemptions      uint64 // late: counted with the victim's next output, never if it is aborted first
	PrefixQueries    uint64 // prompt tokens of sequences at their first admission
	PrefixHits       uint64 // those of them that were in the prefix cache
	RejectedReqs     uint64 // Submits over MaxQueuedReqs
	RejectedTokens   uint64 // Submits over MaxQueuedTokens

	// What no vLLM exports: the ground truth for tests and reports.
	Aborted          uint64
	TokensComputed   uint64 // prompt and output tokens of all steps, whatever became of them
	TokensAborted    uint64 // computed for sequences that were then aborted
	TokensRecomputed uint64 // thrown away by preemptions and not found again; goes down when they are
	PeakWaiting      int    // highest Waiting so far
	PeakKV           float64
}

// Stats returns the gauges as published and the counters.
func (e *Engine) Stats() Stats { return e.stats }

func (e *Engine) publish() {
	e.stats.Running = len(e.running)
	e.stats.Waiting = len(e.waiting)
	e.stats.KV = 1 - float64(e.pool.free)/float64(e.cfg.Blocks-1)
	e.stats.PeakWaiting = max(e.stats.PeakWaiting, e.stats.Waiting)
	e.stats.PeakKV = max(e.stats.PeakKV, e.stats.KV)
}
