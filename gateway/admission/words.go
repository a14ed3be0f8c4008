package admission

import (
	"fmt"
	"slices"
	"time"

	"penstock/fleet"
	"penstock/gateway/directory"
	"penstock/gateway/headers"
	"penstock/gateway/refuse"
	"penstock/reason"
	"penstock/registry"
)

// water refuses by the law "watermark".
func water(d *directory.Directory, model, pool, id string, now time.Time) *refuse.Refusal {
	w := fleet.Level(d.Rows(pool), model, now)
	if !w.Refuses(id, now) {
		return nil
	}
	f := &refuse.Refusal{Reason: reason.Overloaded, Model: model}
	if f.Detail = fmt.Sprintf("How full the engines for model '%s' are is not known.", model); w.Engines > 0 {
		f.Detail = fmt.Sprintf("The engines for model '%s' are full: %.0f %% of their KV cache, %s waiting in %s.", model, 100*w.KV, refuse.Count(w.Waiting, "request"), refuse.Count(w.Engines, "engine"))
	}
	return f
}

// noEngine words why none of the engines that are known for a model takes work: by
// the one heard of last.
func (d *Door) noEngine(model, pool string, known []registry.Engine, now time.Time) *refuse.Refusal {
	f := &refuse.Refusal{Reason: reason.NoEngine, Model: model}
	if len(known) == 0 {
		if pool != "" {
			f.Detail = fmt.Sprintf("No engine for model '%s' is in the pool '%s', where the policy sends this request.", model, pool)
		}
		return f
	}
	newest := slices.MaxFunc(known, func(a, b registry.Engine) int { return a.Seen.Compare(b.Seen) })
	why := d.deps.Directory.Cause(&newest, now)
	if age := now.Sub(newest.Seen); age > directory.Gone {
		if why != "" {
			why = ": " + why
		}
		f.Detail = fmt.Sprintf("No engine for model '%s' is reachable (%d known, last seen %s ago%s).", model, len(known), refuse.Seconds(age), why)
	} else if why != "" {
		f.Detail = fmt.Sprintf("No engine for model '%s' takes work now (%d known, %s).", model, len(known), why)
	}
	return f
}

// Late is the refusal of a request whose start deadline has passed.
func Late(model string, l *headers.Limits, at *Place) *refuse.Refusal {
	f := &refuse.Refusal{Reason: reason.DeadlinePassed, Model: model, Wait: l.Deadline, NoRetry: l.DeadlineNamed}
	if l.Relieved {
		f.Detail = fmt.Sprintf("The service is busy: %s ahead when this one came, about %s, and none of the engines for model '%s' had room for it within %s.",
			refuse.Count(at.Ahead, "request"), refuse.Seconds(at.Wait), f.Model, refuse.Seconds(l.Deadline))
	}
	return f
}

// inference is how long the request is expected to run until its client has what its
// patience counts to: the whole answer, or of a stream the first token where the
// patience starts anew with every byte.
func (d *Door) inference(b *Bid, firstToken time.Duration, output int, now time.Time) time.Duration {
	if b.Limits.Idle && b.Request.Stream {
		return firstToken
	}
	return firstToken + time.Duration(output)*fleet.Step(d.deps.Directory.Rows(b.Lane.Pool), b.Request.Model, now)
}

// tooImpatient is the refusal of a request that could not be answered in time by an
// idle engine either.
func tooImpatient(model string, timeout, inference time.Duration) *refuse.Refusal {
	return &refuse.Refusal{
		Reason: reason.DeadlinePassed, Model: model, Retry: -1,
		Detail: fmt.Sprintf("The answer of model '%s' takes about %s, and the client's own timeout is %s, of which a fifth is kept for the way. Raise the timeout or lower max_tokens.", model, refuse.Seconds(inference), refuse.Seconds(timeout)),
	}
}
