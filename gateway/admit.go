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

	"github.com/cespare/xxhash/v2"

	"penstock/gateway/headers"
	"penstock/gateway/inbox"
	"penstock/gateway/openai"
	"penstock/gateway/refuse"
	"penstock/gateway/route"
	"penstock/lane"
	"penstock/policy"
	"penstock/queue"
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
	ahead     int             // requests ahead of it when it came
	wait      time.Duration   // and how long they were to take
	known     bool            // the directory knows the model
	queued    bool            // it was put into its lane
	told      *refuse.Refusal // how it was refused or failed; nil = it was not, or in the engine's words
	inbox     *inbox.Inbox
	relay     relay
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
	x.class.Lane = lane.Key{Tier: x.policy.DefaultTier(), Type: kind}
	x.path, x.request.Kind = path, kind
	if x.label = headers.Label(r.Header.Get("X-Request-Id")); x.label == "" {
		x.label = x.id
	}
	w.Header()["X-Request-Id"] = []string{x.label}
	g.metrics.open.Inc()
	open := g.open.Add(1)
	defer g.leave()
	if r.ProtoMajor == 1 {
		_ = x.rc.SetWriteDeadline(time.Time{}) // an answer may take long; each write has a limit of its own
		defer x.boundTail()
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
	x.inbox = inbox.New(x.request.Stream && x.onward.filter == nil, x.g.cfg.ClientBuffer, x.unhang)
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

// boundTail limits what net/http still writes when the handler has returned. A
// client that was cut off must not get it: a proper end without [DONE] would look
// like success.
func (x *exchange) boundTail() {
	if x.inbox == nil || !x.inbox.WasCut() {
		_ = x.rc.SetWriteDeadline(time.Now().Add(x.g.cfg.WriteLimit))
	}
}

func (g *Gateway) leave() {
	g.metrics.open.Dec()
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

// queue prices the request, opens its record and puts it into its lane, or
// refuses. The inbox is there: events may come before queue returns.
func (x *exchange) queue() *refuse.Refusal {
	g, key, p := x.g, x.onward.lane, &x.request
	if x.onward.filter != nil {
		p = &x.onward.question
	}
	var known []registry.Engine
	var unknown bool
	err := x.persist(x.r.Context(), func() (err error) {
		known, unknown, err = g.directory.Known(x.r.Context(), p.Model, key.Pool)
		return err
	})
	if err != nil {
		g.warn("read directory", err)
		return &refuse.Refusal{Reason: reason.RecordStoreAway, Model: p.Model}
	}
	if unknown && x.onward.filter == nil {
		f := &refuse.Refusal{Reason: reason.UnknownModel, Model: x.asked, Param: "model"}
		if x.onward.former != nil {
			f.Model = p.Model
		}
		return f
	}
	x.known = x.onward.filter == nil && len(known) > 0 && len(known[0].Models) > 0
	prompt, output := g.prices.quote(x.who.Name, p)
	now := time.Now()
	drain, firstToken := g.directory.Drain(p.Model, key.Pool, known, now)
	if drain.Engines == 0 {
		return g.noEngine(p.Model, key.Pool, known, now)
	}
	if f := x.paced(key, now); f != nil {
		return f
	}
	if l := &x.limits; l.Patience > 0 && x.onward.filter == nil {
		inference, timeout := x.inference(firstToken, output, now), time.Duration(float64(l.Patience)/headers.SDKPart)
		if !l.Fit(inference) {
			return x.tooImpatient(timeout, inference)
		}
	}
	if x.onward.filter == nil && x.onward.former == nil && g.directory.Relieved(p.Model, x.class.Tier, now) {
		x.limits.Relieve(x.maxDeadline())
	}
	m := &queue.Message{
		Version: queue.Version, ID: x.id, Lane: key, Path: x.onward.path(x.path),
		Opened: x.arrived, Deadline: x.arrived.Add(x.limits.Deadline),
		SLOTTFT: x.limits.TTFT, SLOTTFTNamed: x.limits.TTFTNamed, Patient: x.limits.DeadlineNamed, SLOTPOT: x.limits.TPOT,
		PromptTokens: prompt, SafePrompt: p.Longest, ExpectedOut: output, MaxTokens: p.MaxTokens, Sequences: p.Sequences,
		Stream: p.Stream, Traceparent: headers.Traceparent(x.r.Header.Get("Traceparent")), Reply: g.address(x.id), Body: p.Body,
	}
	limit := x.limits.Door(firstToken)
	if x.trip.Moved() { // else nothing of the deadline is gone
		if limit = min(limit, m.Deadline.Sub(now)); limit <= 0 {
			return x.late()
		}
	}
	if g.cfg.RefuseLaw == LawWatermark {
		if f := water(g.directory, p.Model, key.Pool, x.id, now); f != nil {
			return f
		}
		limit = g.cfg.MaxDeadline // no predicted start is too late
	}
	ask := registry.Request{
		ID: x.id, Lane: key, Reply: m.Reply, Deadline: m.Deadline,
		Tokens: m.Tokens(), Bytes: len(p.Body), Limit: limit, Fingerprint: fingerprint(key, m.Path, p.Body), Limits: x.held(),
	}
	admitted, err := x.open(ask, drain)
	if err != nil {
		return x.notQueued(err, reason.RecordStoreAway)
	}
	refuse.ShowLimits(x.w.Header(), ask.Limits, &admitted.Quota)
	if admitted.Quota.Refused {
		return refuse.Limited(&ask, &admitted)
	}
	if admitted.Reason != reason.OK {
		return &refuse.Refusal{Reason: admitted.Reason, Model: p.Model, Ahead: admitted.Ahead, Wait: admitted.Wait, Limit: limit, Retry: admitted.RetryAfter}
	}
	m.Shard, x.ahead, x.wait = admitted.Shard, admitted.Ahead, admitted.Wait
	x.onward.charged = append(x.onward.charged, ask.Limits...)
	ctx, cancel := context.WithTimeout(x.r.Context(), storeWait)
	defer cancel()
	if err := g.deps.Publish(ctx, m); err != nil {
		return x.notQueued(err, reason.BrokerAway)
	}
	return nil
}

// persist repeats a call while the store does not answer: it may only be slow for a
// moment, and knows an id that it has opened. One that stays away is not waited for.
func (x *exchange) persist(ctx context.Context, call func() error) error {
	for last := time.Now().Add(storePatience); ; {
		err := call()
		if !errors.Is(err, registry.ErrAway) || x.g.outage.lasts() || time.Now().After(last) {
			return err
		}
		select {
		case <-time.After(storePause):
		case <-ctx.Done():
			return err
		}
	}
}

// address is where the events of request id come to.
func (g *Gateway) address(id string) string {
	if g.deps.Address == nil {
		return g.reply
	}
	return g.deps.Address(g.reply, id)
}

// fingerprint is equal for a request and its repetition: SDKs send the same body
// again. 0 is left for "not known".
func fingerprint(k lane.Key, path string, body []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(k.Tenant + "\x00" + path + "\x00") // the model is in the body
	_, _ = d.Write(body)
	return max(d.Sum64(), 1)
}

// notQueued undoes what a failed Open or Publish may have left and says why.
func (x *exchange) notQueued(err error, why reason.Reason) *refuse.Refusal {
	gone := x.r.Context().Err() != nil
	_, _ = x.cancel(false) // logged there
	switch {
	case errors.Is(context.Cause(x.r.Context()), errCut):
		why = reason.Draining
	case gone:
		return &refuse.Refusal{Reason: reason.ClientGone}
	case errors.Is(err, queue.ErrTooLarge):
		return &refuse.Refusal{Reason: reason.BodyTooLarge, Detail: fmt.Sprintf("The body of %d bytes is larger than the broker of this fleet takes (its maxMessageSize).", len(x.request.Body))}
	case errors.Is(err, queue.ErrFull):
		return &refuse.Refusal{Reason: reason.LaneFull, Model: x.model(), Detail: fmt.Sprintf("The queue for model '%s' is full.", x.model())}
	case errors.Is(err, queue.ErrClosed):
		why = reason.Draining
	default:
		x.g.warn(why.String(), err)
	}
	return &refuse.Refusal{Reason: why, Model: x.model()}
}

// cancel ends the request for everybody else. It outlives the client.
func (x *exchange) cancel(onlyIfQueued bool) (registry.Canceled, error) {
	ctx, done := context.WithTimeout(context.WithoutCancel(x.r.Context()), storeWait)
	defer done()
	told := x.relay.node
	if !onlyIfQueued {
		if x.g.deps.Abort != nil {
			x.g.deps.Abort(x.id)
		}
		x.tell(told)
	}
	c, err := x.g.deps.Records.Cancel(ctx, x.id, onlyIfQueued)
	if err != nil {
		x.g.warn("cancel", err)
		if !onlyIfQueued && errors.Is(err, registry.ErrAway) {
			x.g.later(lateCancel{x.id, x.arrived.Add(x.limits.Deadline + lateFor)})
		}
	}
	if !onlyIfQueued && c.Owner != told {
		x.tell(c.Owner)
	}
	queued := err == nil && (c.State == registry.Queued || c.State == registry.Unknown)
	if x.g.deps.Discard != nil && (queued || !onlyIfQueued) {
		x.g.deps.Discard(x.id)
	}
	return c, err
}

// tell tells node, "" for none, that the request is over.
func (x *exchange) tell(node string) {
	if node != "" && x.g.deps.Direct != nil {
		x.g.deps.Direct(x.g.directory.Address(node), x.id)
	}
}

// seed is random per request.
func (x *exchange) seed() byte { return x.id[0] ^ x.id[1]<<4 }

// refuse answers a request that was never relayed, with a true status where none is out.
func (x *exchange) refuse(f *refuse.Refusal) {
	if x.relay.sent && f.Reason != reason.ClientGone {
		x.fail(f)
		return
	}
	f.Seed, x.told = x.seed(), f
	x.meta(x.w.Header())
	if f.Reason == reason.ClientGone {
		x.hangUp()
		x.finish(statusClientGone, reason.ClientGone, response.Usage{})
		return
	}
	x.finish(x.g.refusals.Write(x.w, f), f.Reason, response.Usage{})
}
