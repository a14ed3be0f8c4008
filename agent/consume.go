package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"penstock/abort"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/scheduler"
	"penstock/vllm"
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
	// settleWithin bounds the repeats of one call to the record store.
	settleWithin = 30 * time.Second
	// claimWithin bounds those of a claim, and then of its release: a request that
	// waits for its start holds its place in the ledger meanwhile.
	claimWithin = time.Second
	// repeatFrom doubles up to repeatMost between two of them.
	repeatFrom, repeatMost = 50 * time.Millisecond, 2 * time.Second
)

// Causes with which a run's context ends, besides abort.ErrAborted.
var (
	errLost      = errors.New("agent: another attempt owns the request, or it is over")
	errUnrenewed = errors.New("agent: ownership could not be renewed")
	errDrained   = errors.New("agent: drained before it was done")
	errIdle      = errors.New("agent: engine could not be seen to work for the stall limit")
)

// run is one attempt of a request on the engine.
type run struct {
	m       *queue.Message
	attempt string
	began   time.Time
	tries   int // starts so far, this one included; set by the claim
	cancel  context.CancelCauseFunc

	// Guarded by core.mu.
	slot    scheduler.Slot // 0 once given back
	renewed time.Time      // last proof of ownership; zero before the claim
	tokens  bool           // its first token came

	mu    sync.Mutex // guards w and last: the reader writes, and the heartbeat while it is silent
	w     *response.Writer
	last  time.Time   // of the last event
	first atomic.Bool // a byte was relayed
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
	now := time.Now()
	req := a.request(now, m)
	v, head := a.core.decide(now, m, &req)
	if head != nil {
		v = a.wait(ctx, head)
	}
	switch v.Action {
	case scheduler.Start:
		return a.start(ctx, m, v.slot, started)
	case scheduler.Drop:
		return a.finish(ctx, a.newRun(m, "", 0, nil), response.Dropped, outcome{reason: v.Reason})
	default:
		return a.suspend(v.After)
	}
}

// wait holds a head in the room until it is answered, at most RoomHold.
func (a *Agent) wait(ctx context.Context, h *head) answer {
	hold := time.NewTimer(a.cfg.RoomHold)
	defer hold.Stop()
	select {
	case v := <-h.answer:
		return v
	case <-hold.C:
	case <-ctx.Done():
	}
	a.core.expire(time.Now(), h)
	return <-h.answer
}

// start runs a request whose place in the ledger is taken.
func (a *Agent) start(ctx context.Context, m *queue.Message, slot scheduler.Slot, started func()) queue.Result {
	runs, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := a.newRun(m, newAttempt(), slot, cancel)
	defer func() { a.core.release(time.Now(), r, reason.None, false) }()
	if !a.core.begin(r) {
		return queue.Suspend(againPause)
	}
	defer a.core.end(r)
	a.running.Add(m.ID, r.attempt, cancel)
	defer a.running.Remove(m.ID, r.attempt)

	claim, err := a.claim(ctx, r)
	switch {
	case err != nil:
		a.metrics.ended(reason.RecordStoreAway)
		return queue.Suspend(againPause)
	case claim.Action == registry.Ack:
		a.metrics.ended(claim.Reason)
		return queue.Ack()
	case claim.Action != registry.Run:
		a.metrics.ended(claim.Reason)
		return queue.Suspend(claim.After)
	}
	r.tries = claim.Tries
	a.core.owned(r.began, r) // as of before the call: the store's clock began no earlier
	if runs.Err() != nil {
		return a.settle(ctx, r, r.fault(runs, nil))
	}
	started()
	return a.settle(ctx, r, a.relay(runs, r))
}

func (a *Agent) newRun(m *queue.Message, attempt string, slot scheduler.Slot, cancel context.CancelCauseFunc) *run {
	now := time.Now()
	return &run{
		m: m, attempt: attempt, began: now, last: now, slot: slot, cancel: cancel,
		w: response.NewWriter(m.ID, attempt, m.Reply, a.deps.Append),
	}
}

// claim asks for the record. Given up, it is released: the store may have heard it.
func (a *Agent) claim(ctx context.Context, r *run) (claim registry.Claim, err error) {
	err = a.repeat(ctx, claimWithin, "claim", func(ctx context.Context) error {
		claim, err = a.deps.Records.Claim(ctx, registry.Start{
			ID: r.m.ID, Attempt: r.attempt, Owner: a.cfg.Node, Lane: r.m.Lane,
			Deadline: r.m.Deadline, Reply: r.m.Reply, Tokens: r.m.Tokens(),
		})
		return err
	})
	if err != nil {
		_ = a.repeat(context.WithoutCancel(ctx), claimWithin, "release", func(ctx context.Context) error { // else it is owned for a while
			return a.deps.Records.Release(ctx, r.m.ID, r.attempt, true)
		})
	}
	return claim, err
}

// outcome is how an attempt ended.
type outcome struct {
	reason  reason.Reason // Finished, or why not
	status  int           // the engine's, 0 = none
	payload []byte
	usage   response.Usage
	err     error // for the log
}

// settle brings an attempt's outcome into its record and its lane. This is the
// table of outcomes, the only one.
func (a *Agent) settle(ctx context.Context, r *run, o outcome) queue.Result {
	a.metrics.ended(o.reason)
	a.log.Debug("attempt ended", "id", r.m.ID, "attempt", r.attempt, "reason", o.reason.String(), "first", r.first.Load(), "tries", r.tries, "err", o.err)
	if o.reason == reason.EngineDown || o.reason == reason.UpstreamLost {
		kick(a.suspect)
	}
	switch {
	case o.reason == reason.Finished:
		return a.finish(ctx, r, response.Done, o)

	case o.reason == reason.EngineRefused, o.reason == reason.Aborted, o.reason == reason.Orphan:
		return a.finish(ctx, r, response.Failed, o)

	case o.reason == reason.LiveOwner: // or cancelled: then the record wants its outcome, else it refuses it
		o.reason = reason.Aborted
		return a.finish(ctx, r, response.Failed, o)

	case !r.first.Load():
		blameless := o.reason == reason.EngineBusy || o.reason == reason.EngineDrained || o.reason == reason.Draining
		if o.reason == reason.EngineDown {
			a.core.distrust(time.Now())
		}
		a.repeat(ctx, settleWithin, "release", func(ctx context.Context) error {
			return a.deps.Records.Release(ctx, r.m.ID, r.attempt, blameless)
		})
		return a.suspend(backoff(r.tries))

	default:
		o.reason, o.payload = reason.UpstreamLost, nil // the client has its status: no second one
		return a.finish(ctx, r, response.Failed, o)
	}
}

// finish ends the record with its terminal event. Where it is refused, or the store
// cannot be reached, the delivery comes back, and its claim says what is left to do.
func (a *Agent) finish(ctx context.Context, r *run, kind response.Kind, o outcome) queue.Result {
	event, err := r.terminal(kind, a.cfg.Node, o)
	if err != nil {
		a.log.Error("terminal event cannot be encoded", "id", r.m.ID, "err", err)
		return queue.Suspend(faultPauseMost)
	}
	within := settleWithin
	if kind == response.Dropped { // nothing is lost by asking again
		within = 0
	}
	done := false
	err = a.repeat(ctx, within, "finish", func(ctx context.Context) error {
		if err := a.flush(ctx, r); err != nil && !errors.Is(err, response.ErrGone) {
			return err
		}
		done, err = a.deps.Records.Finish(ctx, r.m.ID, r.attempt, event)
		return err
	})
	if done || errors.Is(err, response.ErrGone) { // nobody is left to hear it
		return queue.Ack()
	}
	return queue.Suspend(againPause)
}

// terminal encodes the run's last event; no heartbeat follows it. An answer over
// the events' limit ends as a failure that says so.
func (r *run) terminal(kind response.Kind, node string, o outcome) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := response.Event{
		Kind: kind, Status: o.status, Reason: o.reason, Node: node, Tries: r.tries,
		Queued: r.began.Sub(r.m.Opened), Usage: o.usage, Payload: o.payload,
	}
	event, err := r.w.Encode(e)
	if errors.Is(err, response.ErrTooLarge) {
		e.Kind, e.Status, e.Reason, e.Payload = response.Failed, http.StatusBadGateway, reason.UpstreamLost, nil
		event, err = r.w.Encode(e)
	}
	return event, err
}

func (a *Agent) suspend(after time.Duration) queue.Result {
	result := queue.Suspend(after)
	after, _ = result.After()
	a.metrics.suspended.Observe(after.Seconds())
	return result
}

// backoff is how long a request waits after the engine failed its n-th start.
func backoff(n int) time.Duration {
	return min(faultPause<<min(max(n, 0), 10), faultPauseMost)
}

// repeat calls the record store until it answers, at least once and for at most
// within or until ctx ends; each call has StoreTimeout. A mailbox that is gone is an
// answer.
func (a *Agent) repeat(ctx context.Context, within time.Duration, what string, call func(context.Context) error) error {
	last := time.Now().Add(within)
	for pause := repeatFrom; ; pause = min(2*pause, repeatMost) {
		once, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
		err := call(once)
		cancel()
		if err == nil || errors.Is(err, response.ErrGone) {
			return err
		}
		a.away(what, err)
		if time.Now().Add(pause).After(last) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// request is what the decision sees of a message.
func (a *Agent) request(now time.Time, m *queue.Message) scheduler.Request {
	hash, _ := strconv.ParseUint(m.ID[:min(len(m.ID), 16)], 16, 64) // ids are random hex; any other id draws 0
	return scheduler.Request{
		Hash: hash, PromptTokens: m.PromptTokens, SafePrompt: m.SafePrompt, ExpectedOut: m.ExpectedOut, MaxTokens: m.MaxTokens,
		Sequences: max(m.Sequences, 1), Class: xxhash.Sum64String(m.Lane.Tenant + "\x00" + m.Lane.Model), Model: xxhash.Sum64String(m.Lane.Model),
		Opened: m.Opened, Deadline: m.Deadline,
		SLOTTFT: m.SLOTTFT, SLOTTFTNamed: m.SLOTTFTNamed, SLOTPOT: m.SLOTPOT, Stream: m.Stream, Aborted: a.seen.Marked(now, m.ID),
	}
}

// newAttempt is 128 random bits: the fence of a record and the engine's name for
// the request, where a name used twice has crashed engines.
func newAttempt() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	return hex.EncodeToString(b[:])
}

// fault says why an attempt ended with err, or by its context alone.
func (r *run) fault(ctx context.Context, err error) outcome {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, abort.ErrAborted):
		return outcome{reason: reason.Aborted, err: err}
	case errors.Is(cause, response.ErrGone):
		return outcome{reason: reason.Orphan, err: err}
	case errors.Is(cause, errLost):
		return outcome{reason: reason.LiveOwner, err: err}
	case errors.Is(cause, errIdle):
		return outcome{reason: reason.Stalled, err: err}
	case errors.Is(cause, errDrained), errors.Is(cause, context.Canceled): // the latter: the consumer stopped
		return outcome{reason: reason.Draining, err: err}
	case cause != nil: // not renewed, or an event could not be sent
		return outcome{reason: reason.RecordStoreAway, err: cause}
	}
	var e *vllm.Error
	if !errors.As(err, &e) {
		return outcome{reason: reason.UpstreamLost, err: err}
	}
	return outcome{reason: e.Reason, status: e.Status, payload: e.Body, err: err}
}
