package agent

import (
	"context"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"penstock/agent/attempt"
	"penstock/agent/room"
	"penstock/lane"
	"penstock/queue"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/scheduler"
)

const (
	// againPause is how long a delivery waits that cannot be judged now: its id runs
	// here or elsewhere, or its record cannot be reached.
	againPause = time.Second
	// unknownPause is how long a message of an unknown format version waits for an
	// agent that can read it.
	unknownPause = 5 * time.Second
	// faultPause doubles with every start of a request, up to faultPauseMost.
	faultPause, faultPauseMost = 100 * time.Millisecond, 5 * time.Second
)

// run is one attempt of a request on the engine, with its place in the ledger.
type run struct {
	*attempt.Attempt

	// Guarded by core.mu.
	slot    scheduler.Slot // 0 once given back
	renewed time.Time      // last proof of ownership; zero before the claim
	tokens  bool           // its first token came
}

// handle is the queue's Handler: it brings one delivery to its result.
func (a *Agent) handle(ctx context.Context, m *queue.Message, started func()) queue.Result {
	if m.Version != queue.Version {
		a.log.Warn("message has an unknown format version", "id", m.ID, "version", m.Version)
		return queue.Suspend(unknownPause)
	}
	if a.core.runsHere(m.ID) {
		return queue.Suspend(againPause)
	}
	req := a.request(time.Now(), m)
	v := a.answer(ctx, m, &req)
	if v.Reason == reason.LaneLimit && a.parks(ctx, m.Lane) {
		v = a.answer(ctx, m, &req)
	}
	switch v.Action {
	case scheduler.Start:
		return a.start(ctx, m, v.Slot, started)
	case scheduler.Drop:
		return a.finish(ctx, a.newRun(m, "", 0, nil), response.Dropped, attempt.Outcome{Reason: v.Reason})
	default:
		return a.suspend(v.After)
	}
}

// answer brings a head its answer, after RoomHold at the latest.
func (a *Agent) answer(ctx context.Context, m *queue.Message, req *scheduler.Request) room.Answer {
	h := a.core.decide(time.Now(), m, req)
	if v, ok := within(ctx, a.cfg.RoomHold, h.Answer); ok {
		return v
	}
	a.core.expire(time.Now(), h)
	return <-h.Answer
}

// parks holds the head of a lane that has as many running as it may until one of them
// ends, for RoomHold at most. False: none did, or others wait already.
func (a *Agent) parks(ctx context.Context, k lane.Key) bool {
	ended := a.core.park(k)
	if ended == nil {
		return false
	}
	if _, ok := within(ctx, a.cfg.RoomHold, ended); ok {
		return true
	}
	a.core.unpark(k, ended)
	return false
}

// within waits for c, at most d; false: it came to nothing, or ctx ended.
func within[T any](ctx context.Context, d time.Duration, c <-chan T) (v T, ok bool) {
	select {
	case v = <-c:
		return v, true
	default:
	}
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case v = <-c:
		return v, true
	case <-limit.C:
	case <-ctx.Done():
	}
	return v, false
}

// start runs a request whose place in the ledger is taken.
func (a *Agent) start(ctx context.Context, m *queue.Message, slot scheduler.Slot, started func()) queue.Result {
	runs, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := a.newRun(m, attempt.NewName(), slot, cancel)
	defer func() { a.core.release(time.Now(), r, reason.None, false) }()
	if !a.core.begin(r) {
		return queue.Suspend(againPause)
	}
	defer a.core.end(r)
	a.running.Add(m.ID, r.Name, cancel)
	defer a.running.Remove(m.ID, r.Name)

	claim, err := a.records.Claim(ctx, registry.Start{
		ID: m.ID, Attempt: r.Name, Owner: a.cfg.Node, Lane: m.Lane, Deadline: m.Deadline, Reply: m.Reply, Tokens: m.Tokens(),
	})
	switch {
	case err != nil:
		a.metrics.Ended(reason.RecordStoreAway)
		return queue.Suspend(againPause)
	case claim.Action == registry.Ack:
		a.metrics.Ended(claim.Reason)
		return queue.Ack()
	case claim.Action != registry.Run:
		a.metrics.Ended(claim.Reason)
		return queue.Suspend(claim.After)
	}
	r.Tries = claim.Tries
	a.core.owned(r.Began, r) // as of before the call: the store's clock began no earlier
	if runs.Err() != nil {
		return a.settle(ctx, r, attempt.Fault(runs, nil))
	}
	started()
	return a.settle(ctx, r, a.relay(runs, r))
}

func (a *Agent) newRun(m *queue.Message, name string, slot scheduler.Slot, cancel context.CancelCauseFunc) *run {
	return &run{slot: slot, Attempt: attempt.New(time.Now(), a.cfg.Node, m, name, cancel, a.deps.Append)}
}

// relay runs an attempt on the engine. When it returns, the engine is done with it.
func (a *Agent) relay(ctx context.Context, r *run) attempt.Outcome {
	o := r.Relay(ctx, a.engine.Engine, attempt.Watcher{
		First: func(ctx context.Context, event []byte) (bool, error) {
			return a.records.First(ctx, r.Message.ID, r.Name, r.Message.Reply, event)
		},
		Progress: func(now time.Time, prompt, output int) { a.core.progress(now, r, prompt, output) },
	})
	cut := ctx.Err() != nil && o.Reason != reason.Finished
	if cut {
		a.metrics.Sent.Inc()
	}
	a.core.release(time.Now(), r, o.Reason, cut) // whatever its record needs still
	return o
}

// settle brings an attempt's outcome into its record and its lane. This is the
// table of outcomes, the only one.
func (a *Agent) settle(ctx context.Context, r *run, o attempt.Outcome) queue.Result {
	a.metrics.Ended(o.Reason)
	a.log.Debug("attempt ended", "id", r.Message.ID, "attempt", r.Name, "reason", o.Reason.String(), "first", r.Relayed(), "tries", r.Tries, "err", o.Err)
	if o.Reason == reason.EngineDown || o.Reason == reason.UpstreamLost {
		kick(a.suspect)
	}
	switch {
	case o.Reason == reason.Finished:
		return a.finish(ctx, r, response.Done, o)

	case o.Reason == reason.EngineRefused, o.Reason == reason.Aborted, o.Reason == reason.Orphan:
		return a.finish(ctx, r, response.Failed, o)

	case o.Reason == reason.LiveOwner: // or cancelled: then the record wants its outcome, else it refuses it
		o.Reason = reason.Aborted
		return a.finish(ctx, r, response.Failed, o)

	case !r.Relayed():
		blameless := o.Reason == reason.EngineBusy || o.Reason == reason.EngineDrained || o.Reason == reason.Draining
		if o.Reason == reason.EngineDown {
			a.core.distrust(time.Now())
		}
		a.records.Release(ctx, r.Message.ID, r.Name, blameless)
		return a.suspend(backoff(r.Tries))

	default:
		o.Reason, o.Payload = reason.UpstreamLost, nil // the client has its status: no second one
		return a.finish(ctx, r, response.Failed, o)
	}
}

// finish ends the record with its terminal event. Where it is refused, or the store
// cannot be reached, the delivery comes back, and its claim says what is left to do.
func (a *Agent) finish(ctx context.Context, r *run, kind response.Kind, o attempt.Outcome) queue.Result {
	event, err := r.Terminal(kind, o)
	if err != nil {
		a.log.Error("terminal event cannot be encoded", "id", r.Message.ID, "err", err)
		return queue.Suspend(faultPauseMost)
	}
	dropped := kind == response.Dropped // nothing is lost by asking again
	if a.records.Finish(ctx, r.Message.ID, r.Name, r.Message.Reply, event, used(r.Message, kind, &o), dropped) {
		return queue.Ack()
	}
	return queue.Suspend(againPause)
}

// used is what the request's limits are charged with. An engine that refused has
// computed nothing; a stream that says no usage is charged its prompt and what came of
// it; a plain answer that says none, or was broken off, what was reserved.
func used(m *queue.Message, kind response.Kind, o *attempt.Outcome) quota.Usage {
	u := quota.Usage{Prompt: o.Usage.Prompt, Output: o.Usage.Output, Known: o.Usage.Known}
	switch {
	case kind == response.Dropped, o.Reason == reason.EngineRefused:
		return quota.Usage{Known: true}
	case !u.Known && m.Stream:
		u.Prompt, u.Known = m.PromptTokens, true
	}
	return u
}

func (a *Agent) suspend(after time.Duration) queue.Result {
	result := queue.Suspend(after)
	after, _ = result.After()
	a.metrics.Suspended.Observe(after.Seconds())
	return result
}

// backoff is how long a request waits after the engine failed its n-th start.
func backoff(n int) time.Duration {
	return min(faultPause<<min(max(n, 0), 10), faultPauseMost)
}

// request is what the decision sees of a message, but for its tier, which core knows.
func (a *Agent) request(now time.Time, m *queue.Message) scheduler.Request {
	hash, _ := strconv.ParseUint(m.ID[:min(len(m.ID), 16)], 16, 64) // ids are random hex; any other id draws 0
	return scheduler.Request{
		Hash: hash, PromptTokens: m.PromptTokens, SafePrompt: m.SafePrompt, ExpectedOut: m.ExpectedOut, MaxTokens: m.MaxTokens,
		Sequences: max(m.Sequences, 1), Class: xxhash.Sum64String(m.Lane.Tenant + "\x00" + m.Lane.Model), Model: xxhash.Sum64String(m.Lane.Model),
		Tenant: xxhash.Sum64String(m.Lane.Tenant), Opened: m.Opened, Deadline: m.Deadline,
		SLOTTFT: m.SLOTTFT, SLOTTFTNamed: m.SLOTTFTNamed, Patient: m.Patient, SLOTPOT: m.SLOTPOT, Stream: m.Stream, Aborted: a.seen.Marked(now, m.ID),
	}
}
