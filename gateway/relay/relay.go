package relay

import (
	"bytes"
	"context"
	"time"

	"penstock/gateway/inbox"
	"penstock/response"
)

var (
	ping     = []byte(": ping\n\n") // a comment; never "id:", which makes one SDK read a ping as an event
	doneMark = []byte("data: [DONE]\n\n")
)

// Times are those of one request in one lane.
type Times struct {
	Arrived   time.Time
	Start     time.Time     // until then no start is needed
	Hold      time.Duration // from the arrival, how long a stream's status waits for bytes
	PingEvery time.Duration // silence towards a stream's client before a ping; 0 = never
	Silence   time.Duration // of a request that was started
}

// Relay takes the events of one lane to the client.
type Relay struct {
	client *Client
	in     *inbox.Inbox
	times  Times
	held   bool // the client asked for a stream, whose status must not wait too long
	stream bool // what comes is that stream
	seen   *Seen
	heard  time.Time // last event
	spare  []byte    // the next buffer for the inbox
}

// Seen is what has been seen of a request in its lane.
type Seen struct {
	Started       bool // an event came, or the record says it runs
	Node          string
	Tries         int
	InQueue       time.Duration
	First, Latest time.Time // bytes of the answer
	Chunks        int
}

// Fate is what became of a request, as far as it can be seen here.
type Fate uint8

// The fates.
const (
	Open    Fate = iota
	Ended        // a terminal event came
	Lost         // events went missing
	Gone         // the client is gone or does not read, or a drain cuts it
	Stalled      // nothing was heard for Times.Silence
	Due          // Times.Start has come without a start; it may go on
)

// New makes the relay of what comes to in, which the client awaits. held: the client
// asked for a stream; stream: that is what comes. What is seen is noted in seen.
func New(t Times, c *Client, in *inbox.Inbox, held, stream bool, seen *Seen) *Relay {
	if c.wrote.IsZero() {
		c.wrote = t.Arrived
	}
	return &Relay{client: c, in: in, times: t, held: held, stream: stream, seen: seen, heard: t.Arrived, spare: inbox.GetBuffer()}
}

// Close gives back what the relay holds.
func (r *Relay) Close() { inbox.PutBuffer(r.spare) }

// AskAgain puts the start deadline off, after Due.
func (r *Relay) AskAgain(at time.Time) { r.times.Start = at }

// Runs says of a request at its start deadline that it was started, and was last heard
// of at a time.
func (r *Relay) Runs(heard time.Time) { r.seen.Started, r.heard = true, heard }

// Next relays until there is something to decide; the event is that of Ended. After Due
// it may be called again.
func (r *Relay) Next(ctx context.Context) (Fate, response.Event) {
	armed := r.due()
	wake := time.NewTimer(time.Until(armed))
	defer wake.Stop()
	for {
		fate, end := Open, response.Event{}
		select {
		case <-r.in.Signal():
			// Events mostly push the timers out; then the timer fires early and is
			// set again, which is cheaper than setting it per token.
			fate, end = r.deliver()
			if at := r.due(); at.Before(armed) {
				armed = at
				wake.Reset(time.Until(armed))
			}
		case <-wake.C:
			// After a pause of the whole process events wait as well: first those.
			if fate, end = r.deliver(); fate == Open {
				fate = r.tick(time.Now())
			}
			armed = r.due()
			wake.Reset(time.Until(armed))
		case <-ctx.Done():
			fate = Gone
		}
		if fate != Open {
			return fate, end
		}
	}
}

// deliver passes on what has come.
func (r *Relay) deliver() (Fate, response.Event) {
	v := r.seen
	b := r.in.Take(r.spare)
	r.spare = b.Buf[:0]
	now := time.Now()
	if b.Alive {
		v.Started, r.heard = true, now
	}
	if b.First {
		v.Node, v.Tries, v.InQueue = b.Node, b.Tries, b.Queued
	}
	if len(b.Buf) > 0 && r.stream && b.Fate != inbox.Slow {
		if v.First.IsZero() {
			v.First = now
		}
		v.Latest = now
		v.Chunks += b.Chunks
		if !r.client.Stream(b.Buf) {
			return Gone, response.Event{}
		}
		r.client.done = bytes.HasSuffix(b.Buf, doneMark)
	}
	return fates[b.Fate], b.End
}

var fates = [...]Fate{inbox.Open: Open, inbox.Ended: Ended, inbox.Lost: Lost, inbox.Slow: Gone}

// due is when the next timer runs out.
func (r *Relay) due() time.Time {
	at := r.heard.Add(r.times.Silence)
	if !r.seen.Started {
		at = r.times.Start
	}
	if r.held && !r.client.sent {
		at = earlier(at, r.times.Arrived.Add(r.times.Hold))
	}
	if r.client.sent && r.times.PingEvery > 0 {
		at = earlier(at, r.client.wrote.Add(r.times.PingEvery))
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
func (r *Relay) tick(now time.Time) Fate {
	switch {
	case !r.seen.Started && !now.Before(r.times.Start):
		return Due
	case r.seen.Started && now.Sub(r.heard) >= r.times.Silence:
		return Stalled
	}
	ok := true
	if r.held && !r.client.sent && now.Sub(r.times.Arrived) >= r.times.Hold {
		ok = r.client.Stream(nil)
	} else if r.client.sent && r.times.PingEvery > 0 && now.Sub(r.client.wrote) >= r.times.PingEvery {
		ok = r.client.Stream(ping)
	}
	if !ok {
		return Gone
	}
	return Open
}
