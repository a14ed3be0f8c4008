package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"penstock/gateway/admission"
	"penstock/gateway/outcome"
	"penstock/gateway/refuse"
	"penstock/gateway/relay"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

const (
	askAgain  = time.Second      // between cancels at the start deadline while the records are away
	heartbeat = 15 * time.Second // how often a running attempt is heard of at the least
	lastEvent = 5 * time.Second  // how long the end of a finished request may be on its way
)

// run relays until the request has its outcome, or goes to another lane: true.
func (x *exchange) run() (again bool) {
	cfg, stream := &x.g.cfg, x.request.Stream
	v := relay.New(relay.Times{
		Arrived: x.arrived, Start: x.arrived.Add(x.limits.Deadline), Hold: cfg.HoldHeaders, PingEvery: cfg.PingEvery, Silence: cfg.SilenceLimit,
	}, x.client, x.inbox, stream, stream && x.onward.filter == nil, &x.seen)
	defer v.Close()
	for over := false; !over; {
		fate, e := v.Next(x.r.Context())
		over = fate != relay.Due || x.expire(v)
		switch fate {
		case relay.Ended:
			x.end(&e)
		case relay.Lost:
			_, _ = x.cancel() // logged there; its owner is told again when it finishes
			x.fail(&refuse.Refusal{Reason: reason.UpstreamLost})
		case relay.Stalled:
			_, _ = x.cancel() // logged there
			x.fail(&refuse.Refusal{Reason: reason.Stalled, Wait: cfg.SilenceLimit})
		case relay.Gone:
			x.abandon()
		}
	}
	return x.onward.again
}

// end gives the client what the terminal event says.
func (x *exchange) end(e *response.Event) {
	switch {
	case x.onward.filter != nil && e.Kind == response.Done:
		x.judge(e)
	case x.onward.filter != nil && e.Reason == reason.EngineRefused:
		x.unread(e)
	case e.Kind != response.Done && x.moves(e):
	case e.Kind == response.Done && !x.request.Stream:
		status, why := http.StatusOK, reason.Finished
		if !x.answer(e) {
			status, why = relay.StatusGone, x.whyGone()
		}
		x.finish(status, why, e.Usage)
	case e.Kind == response.Done && !x.client.Done():
		x.failWith(&refuse.Refusal{Reason: reason.UpstreamLost}, e.Usage)
	case e.Kind == response.Done:
		x.finish(http.StatusOK, reason.Finished, e.Usage)
	default:
		x.failed(e)
	}
}

// failed gives the client what became of a request that has no answer.
func (x *exchange) failed(e *response.Event) {
	if e.Reason == reason.EngineRefused && e.Status >= 400 && e.Status < 500 && len(e.Payload) > 0 {
		x.passOn(e)
		return
	}
	f := &refuse.Refusal{Reason: e.Reason}
	if f.Reason == reason.None || f.Reason == reason.OK {
		f.Reason = reason.EngineDown
	}
	switch f.Reason {
	case reason.DeadlinePassed:
		f = admission.Late(x.model(), &x.limits, &x.place)
	case reason.Overloaded:
		f.Ahead, f.Wait = x.place.Ahead, x.place.Wait
	case reason.Stalled:
		f.Wait = x.g.cfg.SilenceLimit
	}
	x.failWith(f, e.Usage)
}

// answer writes a plain answer, whole. False: the client is gone or does not read.
func (x *exchange) answer(e *response.Event) bool {
	x.seen.First = time.Now()
	x.seen.Latest = x.seen.First
	return x.client.Answer(e.Status, e.Payload)
}

// passOn gives the client the engine's own refusal, as it is where the status is
// not out yet.
func (x *exchange) passOn(e *response.Event) {
	if !x.client.Sent() {
		x.w.Header().Set("X-Penstock-Reason", reason.EngineRefused.String())
		x.answer(e)
	} else if line := new(bytes.Buffer); json.Compact(line, e.Payload) == nil {
		x.client.Stream(refuse.Frame(line.Bytes()))
	} else {
		x.client.Stream(x.g.refusals.Event(&refuse.Refusal{Reason: reason.EngineRefused}))
	}
	x.finish(e.Status, reason.EngineRefused, e.Usage)
}

// meta sets the headers that say how the answer came about.
func (x *exchange) meta(h http.Header) {
	v := &x.seen
	if v.Node != "" {
		h["X-Penstock-Node"] = []string{v.Node}
	}
	if v.Tries > 0 {
		h["X-Penstock-Attempts"] = []string{strconv.Itoa(v.Tries)}
		h["X-Penstock-Queue-Ms"] = []string{strconv.FormatInt(v.InQueue.Milliseconds(), 10)}
	}
	if way := x.trip.String(x.onward.lane); way != "" {
		h["X-Penstock-Route"] = []string{way}
	}
}

// expire handles the start deadline: a request that still waits will not run, one
// that runs goes on.
func (x *exchange) expire(v *relay.Relay) (over bool) {
	now := time.Now()
	c, err := x.g.door.Withdraw(x.r.Context(), x.id)
	switch {
	case err != nil && now.Sub(x.arrived) < x.limits.Deadline+heartbeat:
		v.AskAgain(now.Add(askAgain)) // it may run; then it is heard of before long
		return false
	case err != nil, c.State == registry.Queued, c.State == registry.Unknown:
		x.fail(admission.Late(x.model(), &x.limits, &x.place))
		return true
	}
	if c.State == registry.Finished {
		now = now.Add(lastEvent - x.g.cfg.SilenceLimit)
	}
	v.Runs(now)
	return false
}

// fail ends a request that gets no answer, or no more of it.
func (x *exchange) fail(f *refuse.Refusal) { x.failWith(f, response.Usage{}) }

func (x *exchange) failWith(f *refuse.Refusal, used response.Usage) {
	if f.Model == "" {
		f.Model = x.model()
	}
	x.blame(f)
	f.Seed, x.told = x.seed(), f
	var status int
	switch {
	case !x.client.Sent():
		x.meta(x.w.Header())
		status = x.g.refusals.Write(x.w, f)
	case !x.client.Done(): // a client has one [DONE], and reads nothing after it
		x.client.Stream(x.g.refusals.Event(f))
		fallthrough
	default:
		status = x.g.refusals.Rule(f).Status
	}
	x.finish(status, f.Reason, used)
}

// abandon ends a request whose client is gone or does not read, or that a drain
// cuts.
func (x *exchange) abandon() {
	c, err := x.cancel()
	why := x.whyGone()
	if why == reason.ClientGone && errors.Is(context.Cause(x.r.Context()), errCut) {
		x.fail(&refuse.Refusal{Reason: reason.Draining})
		return
	}
	stage, found := c.State, outcome.AbortCanceled
	if err != nil {
		found = outcome.AbortError
	} else if c.State == registry.Finished {
		found = outcome.AbortOver
	}
	if found != outcome.AbortCanceled { // then it counts as what was seen of it
		switch {
		case x.seen.Chunks > 0:
			stage = registry.Streaming
		case x.seen.Started:
			stage = registry.Running
		default:
			stage = registry.Queued
		}
	}
	x.g.metrics.Aborted(stage, found)
	x.client.HangUp()
	x.finish(relay.StatusGone, why, response.Usage{})
}

func (x *exchange) whyGone() reason.Reason {
	if x.inbox.WasCut() {
		return reason.ClientSlow
	}
	return reason.ClientGone
}
