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
	"penstock/gateway/inbox"
	"penstock/gateway/refuse"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

const (
	statusClientGone = 499              // for the log: hardly anybody is there to read it
	askAgain         = time.Second      // between cancels at the start deadline while the records are away
	heartbeat        = 15 * time.Second // how often a running attempt is heard of at the least
	lastEvent        = 5 * time.Second  // how long the end of a finished request may be on its way
	streamType       = "text/event-stream; charset=utf-8"
)

var (
	ping     = []byte(": ping\n\n") // a comment; never "id:", which makes one SDK read a ping as an event
	doneMark = []byte("data: [DONE]\n\n")
)

// relay is the state of an answer on its way to the client.
type relay struct {
	askAt   time.Time // when to ask the record whether it started; until then no start is needed
	started bool      // an event was seen, or the record says it runs
	heard   time.Time // last event
	sent    bool      // status and headers are out
	wrote   time.Time // last byte written
	done    bool      // [DONE] is out
	spare   []byte    // the next buffer for the inbox
	guard   *time.Timer

	node          string
	tries         int
	inQueue       time.Duration
	first, latest time.Time // bytes of the answer
	chunks        int
}

// run relays until the request has its outcome, or goes to another lane: true.
func (x *exchange) run() (again bool) {
	v := &x.relay
	v.askAt, v.heard = x.arrived.Add(x.limits.Deadline), x.arrived
	if v.wrote.IsZero() {
		v.wrote = x.arrived
	}
	v.spare = inbox.GetBuffer()
	x.arm()
	armed := x.due()
	wake := time.NewTimer(time.Until(armed))
	defer func() {
		wake.Stop()
		v.guard.Stop()
		inbox.PutBuffer(v.spare)
	}()
	for over := false; !over; {
		select {
		case <-x.inbox.Signal():
			// Events mostly push the timers out; then the timer fires early and is
			// set again, which is cheaper than setting it per token.
			over = x.deliver()
			if at := x.due(); at.Before(armed) {
				armed = at
				wake.Reset(time.Until(armed))
			}
		case <-wake.C:
			// After a pause of the whole process events wait as well: first those.
			over = x.deliver() || x.tick(time.Now())
			armed = x.due()
			wake.Reset(time.Until(armed))
		case <-x.r.Context().Done():
			over = true
			x.abandon()
		}
	}
	return x.onward.again
}

// arm makes the timer that bounds writes to the client while x.inbox is the request's.
func (x *exchange) arm() {
	x.relay.guard = time.AfterFunc(time.Hour, x.inbox.TimedOut)
	x.relay.guard.Stop()
}

// deliver passes on what has come.
func (x *exchange) deliver() (over bool) {
	v := &x.relay
	b := x.inbox.Take(v.spare)
	v.spare = nil
	defer func() { v.spare = b.Buf[:0] }()
	now := time.Now()
	if b.Alive {
		v.started, v.heard = true, now
	}
	if b.First {
		v.node, v.tries, v.inQueue = b.Node, b.Tries, b.Queued
	}
	if len(b.Buf) > 0 && x.request.Stream && x.onward.filter == nil && b.Fate != inbox.Slow {
		if v.first.IsZero() {
			v.first = now
		}
		v.latest = now
		v.chunks += b.Chunks
		if !x.stream(b.Buf) {
			x.abandon()
			return true
		}
		v.done = bytes.HasSuffix(b.Buf, doneMark)
	}
	switch b.Fate {
	case inbox.Ended:
		x.end(&b.End)
	case inbox.Lost:
		_, _ = x.cancel() // logged there; its owner is told again when it finishes
		x.fail(&refuse.Refusal{Reason: reason.UpstreamLost})
	case inbox.Slow:
		x.abandon()
	}
	return b.Fate != inbox.Open
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
			status, why = statusClientGone, x.whyGone()
		}
		x.finish(status, why, e.Usage)
	case e.Kind == response.Done && !x.relay.done:
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
	h := x.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(e.Payload))}
	x.meta(h)
	x.relay.first, x.relay.latest = time.Now(), time.Now()
	x.relay.guard.Reset(x.g.cfg.WriteLimit)
	if e.Status > 0 {
		x.w.WriteHeader(e.Status)
	}
	_, err := x.w.Write(e.Payload)
	x.relay.guard.Stop()
	return err == nil
}

// passOn gives the client the engine's own refusal, as it is where the status is
// not out yet.
func (x *exchange) passOn(e *response.Event) {
	if !x.relay.sent {
		x.w.Header().Set("X-Penstock-Reason", reason.EngineRefused.String())
		x.answer(e)
	} else if line := new(bytes.Buffer); json.Compact(line, e.Payload) == nil {
		x.stream(refuse.Frame(line.Bytes()))
	} else {
		x.stream(x.g.refusals.Event(&refuse.Refusal{Reason: reason.EngineRefused}))
	}
	x.finish(e.Status, reason.EngineRefused, e.Usage)
}

// meta sets the headers that say how the answer came about.
func (x *exchange) meta(h http.Header) {
	v := &x.relay
	if v.node != "" {
		h["X-Penstock-Node"] = []string{v.node}
	}
	if v.tries > 0 {
		h["X-Penstock-Attempts"] = []string{strconv.Itoa(v.tries)}
		h["X-Penstock-Queue-Ms"] = []string{strconv.FormatInt(v.inQueue.Milliseconds(), 10)}
	}
	if way := x.trip.String(x.onward.lane); way != "" {
		h["X-Penstock-Route"] = []string{way}
	}
}

// stream writes b to the client at once, the status first where it is not out
// yet. False: the client is gone or does not read.
func (x *exchange) stream(b []byte) bool {
	v := &x.relay
	if !v.sent {
		v.sent = true
		h := x.w.Header()
		h["Content-Type"] = []string{streamType}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
		x.meta(h)
		x.w.WriteHeader(http.StatusOK)
	}
	v.guard.Reset(x.g.cfg.WriteLimit)
	_, err := x.w.Write(b)
	if err == nil {
		err = x.rc.Flush()
	}
	v.guard.Stop()
	v.wrote = time.Now()
	return err == nil
}

// unhang makes a write that hangs return. Called with the inbox's lock held, by
// any goroutine, never after the handler has returned.
func (x *exchange) unhang() { _ = x.rc.SetWriteDeadline(time.Unix(1, 0)) }

// due is when the next timer runs out.
func (x *exchange) due() time.Time {
	v, cfg := &x.relay, &x.g.cfg
	at := v.heard.Add(cfg.SilenceLimit)
	if !v.started {
		at = v.askAt
	}
	if x.request.Stream && !v.sent {
		at = earlier(at, x.arrived.Add(cfg.HoldHeaders))
	}
	if v.sent && cfg.PingEvery > 0 {
		at = earlier(at, v.wrote.Add(cfg.PingEvery))
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// tick does what the timers ask for.
func (x *exchange) tick(now time.Time) (over bool) {
	v, cfg := &x.relay, &x.g.cfg
	switch {
	case !v.started && !now.Before(v.askAt):
		if x.expire(now) {
			return true
		}
	case v.started && now.Sub(v.heard) >= cfg.SilenceLimit:
		_, _ = x.cancel() // logged there
		x.fail(&refuse.Refusal{Reason: reason.Stalled, Wait: cfg.SilenceLimit})
		return true
	}
	ok := true
	if x.request.Stream && !v.sent && now.Sub(x.arrived) >= cfg.HoldHeaders {
		ok = x.stream(nil)
	} else if v.sent && cfg.PingEvery > 0 && now.Sub(v.wrote) >= cfg.PingEvery {
		ok = x.stream(ping)
	}
	if !ok {
		x.abandon()
	}
	return !ok
}

// expire handles the start deadline: a request that still waits will not run, one
// that runs goes on.
func (x *exchange) expire(now time.Time) (over bool) {
	v := &x.relay
	c, err := x.g.door.Withdraw(x.r.Context(), x.id)
	switch {
	case err != nil && now.Sub(x.arrived) < x.limits.Deadline+heartbeat:
		v.askAt = now.Add(askAgain) // it may run; then it is heard of before long
		return false
	case err != nil, c.State == registry.Queued, c.State == registry.Unknown:
		x.fail(admission.Late(x.model(), &x.limits, &x.place))
		return true
	}
	v.started, v.heard = true, now
	if c.State == registry.Finished {
		v.heard = now.Add(lastEvent - x.g.cfg.SilenceLimit)
	}
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
	case !x.relay.sent:
		x.meta(x.w.Header())
		status = x.g.refusals.Write(x.w, f)
	case !x.relay.done: // a client has one [DONE], and reads nothing after it
		x.stream(x.g.refusals.Event(f))
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
	stage, found := c.State, abortCanceled
	if err != nil {
		found = abortError
	} else if c.State == registry.Finished {
		found = abortOver
	}
	if found != abortCanceled { // then it counts as what was seen of it
		switch {
		case x.relay.chunks > 0:
			stage = registry.Streaming
		case x.relay.started:
			stage = registry.Running
		default:
			stage = registry.Queued
		}
	}
	x.g.metrics.aborts.WithLabelValues(stageName(stage), found).Inc()
	x.hangUp()
	x.finish(statusClientGone, why, response.Usage{})
}

func (x *exchange) whyGone() reason.Reason {
	if x.inbox.WasCut() {
		return reason.ClientSlow
	}
	return reason.ClientGone
}

// hangUp makes sure that whoever is left at the other end (a client may have
// closed only its sending half) does not take what it got for a whole answer.
func (x *exchange) hangUp() {
	if x.relay.sent {
		x.inbox.TimedOut()
	} else {
		x.w.WriteHeader(statusClientGone)
	}
}
