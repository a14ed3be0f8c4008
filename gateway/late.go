package gateway

import (
	"context"
	"errors"
	"time"

	"penstock/registry"
)

const (
	lateCancels = 4096                   // cancels the store has not answered yet; 100 bytes each
	latePause   = 500 * time.Millisecond // between two tries
	lateFor     = 30 * time.Second       // past the start deadline, how long one is tried: a queued request is dropped by then, and its runner has closed for want of a renewal
)

// lateCancel is a cancel the record store did not answer: without it the request
// would run for nobody.
type lateCancel struct {
	id    string
	until time.Time
}

// later lets cancelLate repeat a cancel.
func (g *Gateway) later(c lateCancel) {
	select {
	case g.late <- c:
	default:
		g.warn("cancel again", errors.New("too many wait for the record store"))
	}
}

// cancelLate repeats cancels one after the other until ctx ends. While the store is
// away nothing starts either, so that none is late.
func (g *Gateway) cancelLate(ctx context.Context) {
	for {
		select {
		case c := <-g.late:
			for time.Now().Before(c.until) {
				call, done := context.WithTimeout(ctx, storeWait)
				_, err := g.deps.Records.Cancel(call, c.id, false)
				done()
				if !errors.Is(err, registry.ErrAway) {
					break
				}
				select {
				case <-time.After(latePause):
				case <-ctx.Done():
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}
