package admission

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

// Cancel ends request id for everybody else; node is where it is known to run, "" = not
// known, deadline that of its start. It outlives ctx, by 5 s at most.
func (d *Door) Cancel(ctx context.Context, id, node string, deadline time.Time) (registry.Canceled, error) {
	if d.deps.Abort != nil {
		d.deps.Abort(id)
	}
	d.tell(node, id)
	c, err := d.cancel(ctx, id, false)
	if errors.Is(err, registry.ErrAway) {
		d.later(lateCancel{id, deadline.Add(lateFor)})
	}
	if c.Owner != node {
		d.tell(c.Owner, id)
	}
	if d.deps.Discard != nil {
		d.deps.Discard(id)
	}
	return c, err
}

// Withdraw ends request id unless it runs. It outlives ctx as Cancel does.
func (d *Door) Withdraw(ctx context.Context, id string) (registry.Canceled, error) {
	c, err := d.cancel(ctx, id, true)
	if d.deps.Discard != nil && err == nil && (c.State == registry.Queued || c.State == registry.Unknown) {
		d.deps.Discard(id)
	}
	return c, err
}

func (d *Door) cancel(ctx context.Context, id string, onlyIfQueued bool) (registry.Canceled, error) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
	defer done()
	c, err := d.deps.Records.Cancel(ctx, id, onlyIfQueued)
	if err != nil {
		d.deps.Warn("cancel", err)
	}
	return c, err
}

// tell tells node, "" for none, that the request is over.
func (d *Door) tell(node, id string) {
	if node != "" && d.deps.Direct != nil {
		d.deps.Direct(d.deps.Directory.Address(node), id)
	}
}

// later lets Run repeat a cancel.
func (d *Door) later(c lateCancel) {
	select {
	case d.late <- c:
	default:
		d.deps.Warn("cancel again", errors.New("too many wait for the record store"))
	}
}

// Run repeats cancels that the record store did not answer, one after the other until
// ctx ends. While the store is away nothing starts either, so that none is late.
func (d *Door) Run(ctx context.Context) {
	for {
		select {
		case c := <-d.late:
			for time.Now().Before(c.until) {
				call, done := context.WithTimeout(ctx, storeWait)
				_, err := d.deps.Records.Cancel(call, c.id, false)
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
