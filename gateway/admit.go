package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"penstock/gateway/admission"
	"penstock/gateway/headers"
	"penstock/gateway/inbox"
	"penstock/gateway/openai"
	"penstock/gateway/refuse"
	"penstock/gateway/relay"
	"penstock/gateway/route"
	"penstock/lane"
	"penstock/policy"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

// exchange is one request and its client, from arrival to outcome. Only the
// handler's goroutine touches it.
type exchange struct {
	g       *Gateway
	w       http.ResponseWriter
	rc      *http.ResponseController
	r       *http.Request
	arrived time.Time

	id, label string         // id is that of its record in the lane where it is; label stays
	policy    *policy.Policy // as it was when the request came
	who       policy.Tenant
	asked     string         // the model as the client named it
	asking    policy.Request // as it was classified
	class     policy.Decision
	path      string // of the API
	request   openai.Request
	limits    headers.Limits
	trip      route.Trip
	onward    onward
	place     admission.Place
	queued    bool            // it was put into its lane
	told      *refuse.Refusal // how it was refused or failed; nil = it was not, or in the engine's words
	client    *relay.Client
	inbox     *inbox.Inbox
	seen      relay.Seen // in the lane where it is
}

// newID is 128 random bits, 32 hex digits.
func newID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// infer serves one request for a model.
func (g *Gateway) infer(w http.ResponseWriter, r *http.Request, path, kind string) {
	x := &exchange{g: g, w: w, rc: http.NewResponseController(w), r: r, arrived: time.Now(), id: newID(), policy: g.policy.Load()}
	x.client = relay.NewClient(w, x.rc, g.cfg.WriteLimit, x.meta)
	x.class.Lane = lane.Key{Tier: x.policy.DefaultTier(), Type: kind}
	x.path, x.request.Kind = path, kind
	if x.label = headers.Label(r.Header.Get("X-Request-Id")); x.label == "" {
		x.label = x.id
	}
	w.Header()["X-Request-Id"] = []string{x.label}
	g.metrics.Opened()
	open := g.open.Add(1)
	defer g.leave()
	if r.ProtoMajor == 1 {
		_ = x.rc.SetWriteDeadline(time.Time{}) // an answer may take long; each write has a limit of its own
		defer x.client.BoundTail()
	}
	if f := x.accept(int(open)); f != nil {
		x.refuse(f)
		return
	}
	for again := true; again; {
		again = x.lane()
	}
}

// lane takes the request through one lane. True: there is another to go through.
func (x *exchange) lane() (again bool) {
	if f := x.next(); f != nil {
		x.refuse(f)
		return false
	}
	x.inbox = inbox.New(x.request.Stream && x.onward.filter == nil, x.g.cfg.ClientBuffer, x.client.Unhang)
	x.client.Await(x.inbox)
	x.g.inboxes.Put(x.id, x.inbox)
	defer func() {
		x.g.inboxes.Remove(x.id)
		x.inbox.Close()
	}()
	if f := x.queue(); f != nil {
		return x.turned(f)
	}
	x.queued = true
	return x.run()
}

func (g *Gateway) leave() {
	g.metrics.Closed()
	if g.open.Add(-1) == 0 && g.draining.Load() {
		select {
		case g.empty <- struct{}{}:
		default:
		}
	}
}

// accept says who asks for what, or refuses.
func (x *exchange) accept(open int) *refuse.Refusal {
	cfg, h := &x.g.cfg, x.r.Header
	if x.g.draining.Load() {
		return &refuse.Refusal{Reason: reason.Draining}
	}
	if open > cfg.MaxOpen {
		return &refuse.Refusal{Reason: reason.Overloaded, Detail: fmt.Sprintf("This gateway holds %d open requests, its limit.", cfg.MaxOpen)}
	}
	if _, err := x.g.mailbox(); err != nil {
		x.g.warn("open mailbox", err)
		return &refuse.Refusal{Reason: reason.RecordStoreAway}
	}
	if x.policy.Missing {
		return unread()
	}
	var ok bool
	if x.who, ok = x.policy.Who(h.Get("Authorization")); !ok {
		return &refuse.Refusal{Reason: reason.NoKey}
	}
	x.class.Lane.Tenant = x.who.Name
	body, f := x.body()
	if f != nil {
		return f
	}
	x.arrived = time.Now() // how long a client takes to send is not our time
	var bad *openai.Fault
	if x.request, bad = openai.Parse(x.request.Kind, body); bad != nil {
		return &refuse.Refusal{Reason: reason.BadRequest, Param: bad.Param, Detail: bad.Message}
	}
	if f := x.classify(); f != nil {
		return f
	}
	var wrong string
	if x.limits, wrong = headers.Parse(h, x.ownLimits(), x.maxDeadline()); wrong == "" {
		x.onward.wish, wrong = headers.ParseWish(h)
	}
	if wrong != "" {
		return &refuse.Refusal{Reason: reason.BadRequest, Detail: wrong}
	}
	return nil
}

// unread is for who comes before it is known who may do what.
func unread() *refuse.Refusal {
	return &refuse.Refusal{Reason: reason.Starting, Detail: "This gateway has not read its policy yet."}
}

// body reads the request's body whole.
func (x *exchange) body() ([]byte, *refuse.Refusal) {
	if e := x.r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &refuse.Refusal{Reason: reason.BadRequest, Detail: fmt.Sprintf("Content-Encoding %q is not supported. Send plain JSON.", headers.Cut(e))}
	}
	limit := x.g.cfg.MaxBody
	tooLarge := &refuse.Refusal{Reason: reason.BodyTooLarge, Detail: fmt.Sprintf("The body is larger than %d bytes, the limit of this gateway (max_body in its configuration).", limit)}
	size := x.r.ContentLength
	if size > limit {
		return nil, tooLarge
	}
	_ = x.rc.SetReadDeadline(time.Now().Add(bodyWait)) // where not supported, the connection's own limits hold
	defer func() { _ = x.rc.SetReadDeadline(time.Time{}) }()
	from := http.MaxBytesReader(x.w, x.r.Body, limit)
	var buf bytes.Buffer
	buf.Grow(int(min(max(size, 0), 1<<20)) + bytes.MinRead) // a claimed size alone does not take memory
	_, err := buf.ReadFrom(from)
	if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
		return nil, tooLarge
	}
	if err != nil {
		if x.r.Context().Err() != nil {
			return nil, &refuse.Refusal{Reason: reason.ClientGone}
		}
		return nil, &refuse.Refusal{Reason: reason.BadRequest, Detail: "The body did not arrive whole."}
	}
	return buf.Bytes(), nil
}

// queue puts the request into its lane, or refuses. The inbox is there: events may come
// before queue returns.
func (x *exchange) queue() *refuse.Refusal {
	o := &x.onward
	b := admission.Bid{
		ID: x.id, Tenant: x.who.Name, Asked: x.asked, Lane: o.lane, Tier: x.class.Tier, Path: o.path(x.path),
		Traceparent: headers.Traceparent(x.r.Header.Get("Traceparent")), Request: &x.request, Opened: x.arrived,
		Limits: &x.limits, MaxDeadline: x.maxDeadline(), Quota: x.held(), SendsPerSecond: x.policy.Lane(o.lane).SendsPerSecond,
		Left: x.trip.Moved(), SentOn: o.former != nil,
	}
	if o.filter != nil {
		b.Question = &o.question
	}
	f := x.g.door.Enter(x.r.Context(), &b, &x.place)
	refuse.ShowLimits(x.w.Header(), b.Quota, &x.place.Quota)
	if x.place.Opened {
		o.charged = append(o.charged, b.Quota...)
	}
	if f != nil && f.Reason == reason.ClientGone && errors.Is(context.Cause(x.r.Context()), errCut) {
		return &refuse.Refusal{Reason: reason.Draining, Model: x.model()}
	}
	return f
}

// cancel ends the request for everybody else. It outlives the client.
func (x *exchange) cancel() (registry.Canceled, error) {
	return x.g.door.Cancel(x.r.Context(), x.id, x.seen.Node, x.arrived.Add(x.limits.Deadline))
}

// seed is random per request.
func (x *exchange) seed() byte { return x.id[0] ^ x.id[1]<<4 }

// refuse answers a request that was never relayed, with a true status where none is out.
func (x *exchange) refuse(f *refuse.Refusal) {
	if x.client.Sent() && f.Reason != reason.ClientGone {
		x.fail(f)
		return
	}
	f.Seed, x.told = x.seed(), f
	x.meta(x.w.Header())
	if f.Reason == reason.ClientGone {
		x.client.HangUp()
		x.finish(relay.StatusGone, reason.ClientGone, response.Usage{})
		return
	}
	x.finish(x.g.refusals.Write(x.w, f), f.Reason, response.Usage{})
}
