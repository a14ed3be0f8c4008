package gateway

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"penstock/gateway/headers"
	"penstock/gateway/openai"
	"penstock/gateway/outcome"
	"penstock/gateway/refuse"
	"penstock/gateway/relay"
	"penstock/gateway/route"
	"penstock/lane"
	"penstock/policy"
	"penstock/quota"
	"penstock/reason"
	"penstock/response"
)

// onward is what a request needs that goes through more than one lane.
type onward struct {
	wish    policy.Wish
	filters []*policy.Filter // still to come

	lane     lane.Key       // where the request is
	filter   *policy.Filter // whose lane that is; nil = its own
	question openai.Request // that the filter is asked

	again   bool          // the lane is left, and there is another to go through
	former  *former       // what the lane did that the request was sent on from; nil = it was not
	charged []quota.Limit // that have counted the request
}

// former is what a request would have been told that was sent on, for when no other lane
// takes it.
type former struct {
	refusal *refuse.Refusal // at the door
	event   *response.Event // or from the lane
}

// path is where the engine is asked.
func (o *onward) path(own string) string {
	if o.filter != nil {
		return openai.ChatPath
	}
	return own
}

// next sets the request up for the lane it goes to: the next filter's, or its own. Each
// has a record of its own; what the client has got already stays.
func (x *exchange) next() *refuse.Refusal {
	o := &x.onward
	if x.trip.Moved() {
		x.id = newID()
		x.seen = relay.Seen{}
	}
	o.again, o.filter, o.lane = false, nil, x.class.Lane
	if len(o.filters) == 0 {
		return nil
	}
	o.filter, o.filters = o.filters[0], o.filters[1:]
	o.lane = o.filter.Lane(x.policy, x.class, &x.asking)
	var bad *openai.Fault
	if o.question, bad = x.request.Question(o.lane.Model, o.filter.MaxTokens); bad != nil {
		return &refuse.Refusal{Reason: reason.BadRequest, Param: bad.Param, Detail: bad.Message}
	}
	return nil
}

// held are the limits of the request in its lane. What counts requests and has counted
// this one in another lane does not count it again; tokens it took there are given back.
// A filter's question is the service's own.
func (x *exchange) held() []quota.Limit {
	if x.onward.filter != nil {
		return nil
	}
	all := x.policy.Limits(nil, &x.who, x.request.Model, x.class.Tier)
	if len(x.onward.charged) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(l quota.Limit) bool {
		return l.Unit == quota.Requests && slices.ContainsFunc(x.onward.charged, func(c quota.Limit) bool {
			return c.Unit == l.Unit && c.Scope == l.Scope && c.Bucket == l.Bucket && c.Per == l.Per && c.Window == l.Window
		})
	})
}

// model is the one that the request, or its filter's question, is for.
func (x *exchange) model() string {
	if x.onward.filter != nil {
		return x.onward.lane.Model
	}
	return x.request.Model
}

// turned handles what the door of a lane says to the request. True: another lane is
// next.
func (x *exchange) turned(f *refuse.Refusal) (again bool) {
	if t, ok := route.Trouble(f.Reason, 0, false); ok && x.sendOn(t, former{refusal: f}) {
		return true
	}
	f.Seed = x.seed()
	switch h := x.onward.former; {
	case h == nil, f.Reason == reason.ClientGone, x.g.refusals.Sooner(f, h.refusal):
		x.blame(f)
		x.refuse(f)
	case h.refusal != nil:
		x.refuse(h.refusal)
	default:
		x.failed(h.event)
	}
	return false
}

// moves sends the request on after what its lane did with it. False: that is its
// outcome.
func (x *exchange) moves(e *response.Event) bool {
	tooLong := e.Reason == reason.EngineRefused && openai.TooLong(e.Payload)
	t, ok := route.Trouble(e.Reason, e.Status, tooLong)
	return ok && x.sendOn(t, former{event: e})
}

// sendOn puts the request into another lane, where there is one for what happened.
func (x *exchange) sendOn(t policy.Trouble, was former) bool {
	if x.onward.filter != nil {
		return false
	}
	n := x.trip.Next(x.policy, &route.Stop{
		Trouble: t, Class: x.class, Request: &x.asking, Wish: x.onward.wish,
		Relayed: x.seen.Chunks > 0, Left: time.Until(x.arrived.Add(x.limits.Deadline)),
	})
	if n.Move == route.Stay {
		return false
	}
	x.g.metrics.Moved(n.Move, t.Class)
	x.g.deps.Log.LogAttrs(x.r.Context(), slog.LevelDebug, "request sent on",
		slog.String("id", x.id), slog.String("label", x.label), slog.String("move", n.Move.String()), slog.String("reroute", n.Name),
		slog.String("trouble", t.String()), slog.String("from", x.class.Lane.String()), slog.String("to", n.Class.Lane.String()))
	x.class, x.onward.former, x.onward.again = n.Class, &was, true
	x.rename()
	x.relimit()
	return true
}

// relimit gives the request the targets of the tier it is put into; its deadline stays.
func (x *exchange) relimit() {
	was := x.limits
	x.limits, _ = headers.Parse(x.r.Header, x.ownLimits(), x.maxDeadline()) // accepted once
	x.limits.Deadline, x.limits.Relieved = was.Deadline, was.Relieved
	if was.Relieved && !was.TTFTNamed {
		x.limits.TTFT = max(x.limits.TTFT, was.Deadline)
	}
}

// judge acts on a filter's answer.
func (x *exchange) judge(e *response.Event) {
	f := x.onward.filter
	if e.Usage.Known {
		x.g.door.Learn(x.who.Name, &x.onward.question, e.Usage)
	}
	if !f.Passes(openai.Answer(e.Payload)) {
		x.g.metrics.Filtered(outcome.FilterStopped)
		x.onward.filter = nil // it did its work
		x.fail(&refuse.Refusal{Reason: reason.Filtered, Detail: f.Refusal})
		return
	}
	x.g.metrics.Filtered(outcome.FilterPassed)
	x.trip.Left(x.onward.lane, string(outcome.FilterPassed))
	x.onward.again = true
}

// unread ends a request that its filter's engine refused to read.
func (x *exchange) unread(e *response.Event) {
	f := &refuse.Refusal{Reason: reason.Filtered, Detail: fmt.Sprintf("Its engine answered %d.", e.Status)}
	if openai.TooLong(e.Payload) {
		f = &refuse.Refusal{Reason: reason.TooLarge, Model: x.model()}
	}
	x.fail(f)
}

// blame says of a refusal that it is of a filter and not of the request's own lane.
func (x *exchange) blame(f *refuse.Refusal) {
	if x.onward.filter == nil || f.Reason == reason.ClientGone {
		return
	}
	x.g.metrics.Filtered(outcome.FilterFailed)
	detail := f.Detail
	if detail == "" {
		detail = f.Cause()
	}
	f.Detail = fmt.Sprintf("The filter '%s' reads requests first and could not read this one. %s", x.onward.filter.Name, detail)
	x.onward.filter = nil // said once
}
