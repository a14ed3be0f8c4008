package agent

import (
	"context"
	"time"

	"penstock/agent/attempt"
)

// cutWithin bounds how long requests cut at the end of a drain may take to settle
// their records.
const cutWithin = 2 * time.Second

// drain ends the agent's work in order: health says NOT_SERVING and the lanes are
// given up, held heads go back, what runs goes on for Grace, the rest is cut and
// settled by the table of outcomes. It returns when nothing runs, or soon after
// the cut.
func (a *Agent) drain(ctx context.Context) {
	running := a.core.drain(time.Now())
	kick(a.changed)
	a.log.Info("draining", "running", running, "grace", a.cfg.Grace)
	if !a.idle(ctx, a.cfg.Grace) {
		left := 0
		a.core.each(func(r *run) {
			left++
			r.Cancel(attempt.ErrDrained)
		})
		a.log.Warn("drain cut running requests", "running", left)
		if !a.idle(ctx, cutWithin) {
			a.log.Warn("cut requests are not settled; their records expire", "within", cutWithin)
			return
		}
	}
	a.log.Info("drained")
}

// idle waits until nothing runs, at most d.
func (a *Agent) idle(ctx context.Context, d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-a.core.idle:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}
