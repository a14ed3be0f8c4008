// Package admission is the way of a request into its lane: what it is expected to cost,
// whether it may have a place by what engines, rates, limits and the record store say,
// and how it is taken out again. It repeats what a store does not answer for a moment.
// Safe for concurrent use.
package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"penstock/cost"
	"penstock/gateway/directory"
	"penstock/gateway/headers"
	"penstock/gateway/openai"
	"penstock/gateway/refuse"
	"penstock/lane"
	"penstock/queue"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// Config is by what the door admits.
type Config struct {
	Watermark   bool          // refuse by the engines' gauges alone and by no predicted start
	MaxDeadline time.Duration // longest start deadline a client may name
}

// Deps are what the door talks to. Directory, Records, Publish, Reply and Warn are needed.
type Deps struct {
	Directory *directory.Directory
	Records   registry.Records
	Publish   func(ctx context.Context, m *queue.Message) error
	Reply     func(id string) string       // the address where the events of request id come to
	Discard   func(id string) bool         // frees a queued message; nil = nobody can
	Abort     func(id string)              // tells all agents that a request is over; does not wait; nil = no such way
	Direct    func(address, id string)     // tells the agent at address alone; does not wait; nil = no such way
	Warn      func(call string, err error) // logs a call that failed
}

// Door admits requests to their lanes.
type Door struct {
	cfg  Config
	deps Deps

	pricing  sync.Mutex
	estimate *cost.Estimator // guarded by pricing; a call takes about a microsecond

	sends  sends
	late   chan lateCancel
	outage outage
}

// New makes a door; Run repeats the cancels that the record store did not answer.
func New(cfg Config, deps Deps) (*Door, error) {
	estimate, err := cost.New(cost.DefaultConfig())
	if err != nil {
		return nil, err
	}
	return &Door{
		cfg: cfg, deps: deps, estimate: estimate, sends: sends{next: map[lane.Key]time.Time{}},
		late: make(chan lateCancel, lateCancels),
	}, nil
}

// Bid is one request that asks for a place in one lane.
type Bid struct {
	ID, Tenant     string
	Asked          string // the model as the client named it
	Lane           lane.Key
	Tier           int // of the policy's order
	Path           string
	Traceparent    string
	Request        *openai.Request
	Question       *openai.Request // what a filter is asked about Request, instead of it; nil = the request itself bids
	Opened         time.Time
	Limits         *headers.Limits // Enter fits them to the answer's own time and to the tier's relief
	MaxDeadline    time.Duration   // longest that relief may make the deadline
	Quota          []quota.Limit
	SendsPerSecond float64 // rate of the lane at this gateway; 0 = none
	Left           bool    // it left a lane before, so that some of its deadline is gone
	SentOn         bool    // by a reroute or a downgrade
}

// asks is what the engine is to answer.
func (b *Bid) asks() *openai.Request {
	if b.Question != nil {
		return b.Question
	}
	return b.Request
}

// Place is what came of a bid. One that came before stays in what a refusal leaves unsaid.
type Place struct {
	Known  bool          // the directory knows the model
	Ahead  int           // requests ahead of it when it came
	Wait   time.Duration // and how long they were to take
	Opened bool          // its record was opened, so that Bid.Quota has counted it
	Quota  quota.Verdict
}

// Enter prices the request, opens its record and puts it into its lane, or refuses.
// Events may come before it returns. A refusal for ClientGone means that ctx has ended.
func (d *Door) Enter(ctx context.Context, b *Bid, at *Place) *refuse.Refusal {
	at.Opened, at.Quota = false, quota.Verdict{}
	p, known, f := d.known(ctx, b, at)
	if f != nil {
		return f
	}
	prompt, output := d.Quote(b.Tenant, p)
	now := time.Now()
	drain, firstToken := d.deps.Directory.Drain(p.Model, b.Lane.Pool, known, now)
	if drain.Engines == 0 {
		return d.noEngine(p.Model, b.Lane.Pool, known, now)
	}
	if f := d.paced(b, now); f != nil {
		return f
	}
	if f := d.fit(b, firstToken, output, now); f != nil {
		return f
	}
	m := &queue.Message{
		Version: queue.Version, ID: b.ID, Lane: b.Lane, Path: b.Path,
		Opened: b.Opened, Deadline: b.Opened.Add(b.Limits.Deadline),
		SLOTTFT: b.Limits.TTFT, SLOTTFTNamed: b.Limits.TTFTNamed, Patient: b.Limits.DeadlineNamed, SLOTPOT: b.Limits.TPOT,
		PromptTokens: prompt, SafePrompt: p.Longest, ExpectedOut: output, MaxTokens: p.MaxTokens, Sequences: p.Sequences,
		Stream: p.Stream, Traceparent: b.Traceparent, Reply: d.deps.Reply(b.ID), Body: p.Body,
	}
	limit := b.Limits.Door(firstToken)
	if b.Left { // else nothing of the deadline is gone
		if limit = min(limit, m.Deadline.Sub(now)); limit <= 0 {
			return Late(p.Model, b.Limits, at)
		}
	}
	if d.cfg.Watermark {
		if f := water(d.deps.Directory, p.Model, b.Lane.Pool, b.ID, now); f != nil {
			return f
		}
		limit = d.cfg.MaxDeadline // no predicted start is too late
	}
	return d.enqueue(ctx, b, at, m, limit, drain)
}

// known finds the engines that may answer the bid.
func (d *Door) known(ctx context.Context, b *Bid, at *Place) (p *openai.Request, known []registry.Engine, f *refuse.Refusal) {
	p = b.asks()
	var unknown bool
	err := d.persist(ctx, func() (err error) {
		known, unknown, err = d.deps.Directory.Known(ctx, p.Model, b.Lane.Pool)
		return err
	})
	if err != nil {
		d.deps.Warn("read directory", err)
		return p, nil, &refuse.Refusal{Reason: reason.RecordStoreAway, Model: p.Model}
	}
	if unknown && b.Question == nil {
		f := &refuse.Refusal{Reason: reason.UnknownModel, Model: b.Asked, Param: "model"}
		if b.SentOn {
			f.Model = p.Model
		}
		return p, nil, f
	}
	at.Known = b.Question == nil && len(known) > 0 && len(known[0].Models) > 0
	return p, known, nil
}

// fit takes the answer's own time off the client's patience, and grants the relief of
// its tier.
func (d *Door) fit(b *Bid, firstToken time.Duration, output int, now time.Time) *refuse.Refusal {
	if b.Question != nil {
		return nil
	}
	if l := b.Limits; l.Patience > 0 {
		inference, timeout := d.inference(b, firstToken, output, now), time.Duration(float64(l.Patience)/headers.SDKPart)
		if !l.Fit(inference) {
			return tooImpatient(b.Request.Model, timeout, inference)
		}
	}
	if !b.SentOn && d.deps.Directory.Relieved(b.Request.Model, b.Tier, now) {
		b.Limits.Relieve(b.MaxDeadline)
	}
	return nil
}

// enqueue opens the record of m and publishes it; limit is the longest predicted wait it
// gets a place for.
func (d *Door) enqueue(ctx context.Context, b *Bid, at *Place, m *queue.Message, limit time.Duration, drain registry.Drain) *refuse.Refusal {
	ask := registry.Request{
		ID: m.ID, Lane: m.Lane, Reply: m.Reply, Deadline: m.Deadline,
		Tokens: m.Tokens(), Bytes: len(m.Body), Limit: limit, Fingerprint: fingerprint(m.Lane, m.Path, m.Body), Limits: b.Quota,
	}
	admitted, err := d.open(ctx, ask, drain, b.Limits)
	if err != nil {
		return d.notQueued(ctx, b, err, reason.RecordStoreAway)
	}
	at.Quota = admitted.Quota
	if admitted.Quota.Refused {
		return refuse.Limited(&ask, &admitted)
	}
	if admitted.Reason != reason.OK {
		return &refuse.Refusal{Reason: admitted.Reason, Model: b.asks().Model, Ahead: admitted.Ahead, Wait: admitted.Wait, Limit: limit, Retry: admitted.RetryAfter}
	}
	m.Shard, at.Ahead, at.Wait, at.Opened = admitted.Shard, admitted.Ahead, admitted.Wait, true
	call, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	if err := d.deps.Publish(call, m); err != nil {
		return d.notQueued(ctx, b, err, reason.BrokerAway)
	}
	return nil
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
func (d *Door) notQueued(ctx context.Context, b *Bid, err error, why reason.Reason) *refuse.Refusal {
	gone := ctx.Err() != nil
	_, _ = d.Cancel(ctx, b.ID, "", b.Opened.Add(b.Limits.Deadline)) // logged there
	model := b.asks().Model
	switch {
	case gone:
		return &refuse.Refusal{Reason: reason.ClientGone}
	case errors.Is(err, queue.ErrTooLarge):
		return &refuse.Refusal{Reason: reason.BodyTooLarge, Detail: fmt.Sprintf("The body of %d bytes is larger than the broker of this fleet takes (its maxMessageSize).", len(b.Request.Body))}
	case errors.Is(err, queue.ErrFull):
		return &refuse.Refusal{Reason: reason.LaneFull, Model: model, Detail: fmt.Sprintf("The queue for model '%s' is full.", model)}
	case errors.Is(err, queue.ErrClosed):
		why = reason.Draining
	default:
		d.deps.Warn(why.String(), err)
	}
	return &refuse.Refusal{Reason: why, Model: model}
}
