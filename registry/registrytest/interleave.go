package registrytest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// Interleave plays random orders of what gateways and agents do, each step
// possibly repeated, late, by an owner thought dead or after a crash: an owner
// that crashes just takes no more steps. Whatever the order: one terminal event
// per request and none after it, never two live owners, never a second run once a
// byte was relayed, and in the end nothing counted.
func Interleave(t *testing.T, with With) {
	for range 5 { // of 100 plays each
		t.Run("plays", func(t *testing.T) { interleave(t, with) })
	}
}

func interleave(t *testing.T, with With) {
	with(t, func(t *testing.T, h Harness) {
		next := 0
		// Hiding *testing.T keeps rapid from its Deadline, which a bubble forbids.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			p := &play{T: t, Harness: h, ctx: t.Context(), next: &next}
			if store, is := h.Records.(interface{ Quota() quota.Totals }); is {
				p.before = store.Quota()
			}
			t.Repeat(map[string]func(*rapid.T){
				"":        p.check,
				"open":    p.open,
				"deliver": p.deliver,
				"again":   p.again,
				"renew":   p.renew,
				"first":   p.first,
				"finish":  p.finish,
				"drop":    p.drop,
				"release": p.release,
				"cancel":  p.cancel,
				"wait":    p.wait,
			})
			p.end()
		})
	})
}

// play is one order of events.
type play struct {
	*rapid.T
	Harness
	ctx      context.Context
	next     *int // numbers ids and attempts over all plays
	requests []*request
	before   quota.Totals
}

// request is what its clients and agents know of it.
type request struct {
	id       string
	start    registry.Start
	canceled bool
	attempts []*attempt
	relayed  *attempt
	over     bool // some call said so
}

// attempt is a start that was allowed.
type attempt struct {
	name  string
	until time.Time // its ownership as its owner knows it; zero once given up
}

func (p *play) name() string {
	*p.next++
	return fmt.Sprint("n", *p.next)
}

func (p *play) pick() *request {
	if len(p.requests) == 0 {
		p.Skip("nothing opened")
	}
	return rapid.SampledFrom(p.requests).Draw(p.T, "request")
}

func (p *play) pickAttempt() (*request, *attempt) {
	q := p.pick()
	if len(q.attempts) == 0 {
		p.Skip("never started")
	}
	return q, rapid.SampledFrom(q.attempts).Draw(p.T, "attempt")
}

func (p *play) must(err error) {
	if err != nil {
		p.Fatal(err)
	}
}

func (p *play) open(*rapid.T) {
	if len(p.requests) == 3 {
		p.Skip("enough")
	}
	q := &request{id: p.name()}
	q.start = registry.Start{ID: q.id, Lane: chat, Deadline: p.Now().Add(10 * time.Minute), Reply: q.id, Tokens: 100}
	r := registry.Request{ID: q.id, Lane: chat, Reply: q.id, Deadline: q.start.Deadline, Tokens: 100, Bytes: 10, Limit: time.Hour, Limits: []quota.Limit{{Scope: quota.Tenant, Bucket: "a", Amount: 1 << 40, Per: time.Minute}}}
	for range 2 {
		a, err := p.Records.Open(p.ctx, r, engines)
		p.must(err)
		if a.Reason != reason.OK {
			p.Fatalf("open: %+v", a)
		}
	}
	p.requests = append(p.requests, q)
}

func (p *play) deliver(*rapid.T) { p.claim(p.pick(), p.name()) }

// again repeats a claim that may have timed out.
func (p *play) again(*rapid.T) {
	q, a := p.pickAttempt()
	if q.attempts[len(q.attempts)-1] != a || a.until.IsZero() {
		p.Skip("its owner has gone on")
	}
	p.claim(q, a.name)
}

func (p *play) claim(q *request, name string) registry.Claim {
	s := q.start
	s.Attempt, s.Owner = name, "owner of "+name
	c, err := p.Records.Claim(p.ctx, s)
	p.must(err)
	// Aborted: its owner may still be at it.
	q.over = q.over || (c.Action == registry.Ack && c.Reason != reason.Aborted)
	if c.Action != registry.Run {
		return c
	}
	if c.Tries < 1 || c.Tries > registry.MaxTries {
		p.Fatalf("%s runs for the %d. time", q.id, c.Tries)
	}
	if q.over || q.relayed != nil || len(p.ends(q)) > 0 {
		p.Fatalf("%s runs again after it was over or a byte was relayed", q.id)
	}
	for _, a := range q.attempts {
		if a.name == name {
			a.until = p.Now().Add(registry.Ownership)
			return c
		}
		if p.Now().Before(a.until) {
			p.Fatalf("%s runs as %s while %s owns it", q.id, name, a.name)
		}
	}
	q.attempts = append(q.attempts, &attempt{name: name, until: p.Now().Add(registry.Ownership)})
	return c
}

func (p *play) renew(*rapid.T) {
	q, a := p.pickAttempt()
	if p.Now().Sub(a.until) > 2*registry.Ownership {
		p.Skip("given up, or closed by itself after 30 s without a renewal")
	}
	lost, err := p.Records.Renew(p.ctx, "owner of "+a.name, []registry.Ref{{ID: q.id, Attempt: a.name, Reply: q.id, Streaming: q.relayed == a}})
	p.must(err)
	if len(lost) > 0 {
		a.until = time.Time{}
		return
	}
	if q.over || a != q.attempts[len(q.attempts)-1] {
		p.Fatalf("%s of %s was renewed after it was over or another ran", a.name, q.id)
	}
	a.until = p.Now().Add(registry.Ownership)
}

func (p *play) first(*rapid.T) {
	q, a := p.pickAttempt()
	ok, err := p.Records.First(p.ctx, q.id, a.name, []byte("first "+a.name))
	p.must(err)
	if !ok {
		a.until = time.Time{}
		return
	}
	if q.relayed != nil && q.relayed != a {
		p.Fatalf("%s relays %s after %s", q.id, a.name, q.relayed.name)
	}
	if q.relayed == nil {
		q.relayed, a.until = a, p.Now().Add(registry.Ownership)
	}
}

func (p *play) finish(*rapid.T) {
	q, a := p.pickAttempt()
	p.finishAs(q, a.name)
	a.until = time.Time{}
}

// drop is a delivery that the decision drops.
func (p *play) drop(*rapid.T) { p.finishAs(p.pick(), "") }

func (p *play) finishAs(q *request, name string) {
	ok, err := p.Records.Finish(p.ctx, q.id, name, []byte("end "+name), quota.Usage{Prompt: 30, Known: true})
	p.must(err)
	if !ok {
		if q.over {
			p.Fatalf("finish of %s by %q says another attempt lives after it was over", q.id, name)
		}
		return
	}
	for _, a := range q.attempts {
		if !q.over && a.name != name && p.Now().Before(a.until) && !q.canceled {
			p.Fatalf("%s was finished by %q while %s owned it", q.id, name, a.name)
		}
	}
	q.over = true
}

func (p *play) release(*rapid.T) {
	q, a := p.pickAttempt()
	p.must(p.Records.Release(p.ctx, q.id, a.name, rapid.Bool().Draw(p.T, "blameless")))
	if q.relayed != a {
		a.until = time.Time{}
	}
}

func (p *play) cancel(*rapid.T) {
	q := p.pick()
	only := rapid.Bool().Draw(p.T, "only if queued")
	c, err := p.Records.Cancel(p.ctx, q.id, only)
	p.must(err)
	q.canceled = q.canceled || !only || c.State == registry.Queued
	q.over = q.over || c.State == registry.Queued || c.State == registry.Finished
}

func (p *play) wait(*rapid.T) {
	p.Advance(time.Duration(rapid.IntRange(1, 12_000).Draw(p.T, "ms")) * time.Millisecond)
}

func (p *play) ends(q *request) []string {
	return slices.DeleteFunc(slices.Clone(p.Events(q.id)), func(e string) bool { return !strings.HasPrefix(e, "end ") })
}

// check holds after every step.
func (p *play) check(*rapid.T) {
	for _, q := range p.requests {
		events := p.Events(q.id)
		if n := len(p.ends(q)); n > 1 || (n == 1 && !strings.HasPrefix(events[len(events)-1], "end ")) {
			p.Fatalf("events of %s: %q, want one terminal event, the last", q.id, events)
		}
		if len(events) > 2 {
			p.Fatalf("events of %s: %q, want one first and one terminal event", q.id, events)
		}
	}
	if n := p.waiting(); n < 0 || n > len(p.requests) {
		p.Fatalf("%d requests wait, %d were opened", n, len(p.requests))
	}
}

func (p *play) waiting() (n int) {
	for _, b := range p.Backlog() {
		if b.Tokens != 100*b.Requests {
			p.Fatalf("backlog %+v, want 100 tokens each", b)
		}
		n += b.Requests
	}
	return n
}

// end delivers every request until it is over.
func (p *play) end() {
	for _, q := range p.requests {
		for range 20 {
			name := p.name()
			c := p.claim(q, name)
			if q.over {
				break
			}
			if c.Action == registry.Run {
				p.finishAs(q, name)
			} else {
				p.Advance(max(c.After, time.Second))
			}
		}
		if n := len(p.ends(q)); !q.over || (n == 0 && !q.canceled) {
			p.Fatalf("%s in the end: over %v, %d terminal events", q.id, q.over, n)
		}
	}
	p.check(nil)
	if n := p.waiting(); n != 0 {
		p.Fatalf("%d requests wait in the end", n)
	}
	p.settled()
	p.Advance(time.Minute)
}

// settled wants each request's 100 tokens settled once. One that was cancelled and then
// forgotten by all has spent them unsettled.
func (p *play) settled() {
	store, is := p.Records.(interface{ Quota() quota.Totals })
	if !is {
		return
	}
	total, once, least := store.Quota(), 0, 0
	for _, q := range p.requests {
		once += 100
		if !q.canceled {
			least += 100
		}
	}
	got := int(total.Settled + total.Refunded - p.before.Settled - p.before.Refunded)
	if int(total.Reserved-p.before.Reserved) != once || got > once || got < least {
		p.Fatalf("limits: %+v, before %+v; want %d reserved, and as much settled and refunded, %d at the least", total, p.before, once, least)
	}
}
