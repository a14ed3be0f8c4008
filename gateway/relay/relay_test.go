package relay

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"penstock/gateway/inbox"
	"penstock/response"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	chunk = "data: a\n\n"
	done  = "data: [DONE]\n\n"
)

// play is one request on its way to a client without a network.
type play struct {
	rec    *httptest.ResponseRecorder
	client *Client
	in     *inbox.Inbox
	relay  *Relay
	seen   Seen
	seq    uint64
}

// newPlay is a request that came now and may wait 30 s for its start.
func newPlay(w http.ResponseWriter, held, stream bool) *play {
	p := &play{rec: httptest.NewRecorder()}
	if w == nil {
		w = p.rec
	}
	p.client = NewClient(w, http.NewResponseController(w), time.Second, func(h http.Header) { h["X-Penstock-Node"] = []string{p.seen.Node} })
	p.in = inbox.New(stream, 1<<10, p.client.Unhang)
	p.client.Await(p.in)
	now := time.Now()
	p.relay = New(Times{Arrived: now, Start: now.Add(30 * time.Second), Hold: 45 * time.Second, PingEvery: 15 * time.Second, Silence: 2 * time.Minute}, p.client, p.in, held, stream, &p.seen)
	return p
}

func (p *play) send(kind response.Kind, payload string) {
	p.seq++
	p.in.Push(&response.Event{Kind: kind, Attempt: "a", Seq: p.seq, Node: "n1", Tries: 1, Payload: []byte(payload)})
}

// TestNext: what there is to decide, and when.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		name         string
		held, stream bool
		before       func(p *play)
		want         Fate
		after        time.Duration
		body         string
		sent, done   bool
		chunks       int
	}{
		{name: "no start", want: Due, after: 30 * time.Second},
		{name: "a start and silence", before: func(p *play) { p.send(response.Heartbeat, "") }, want: Stalled, after: 2 * time.Minute},
		{name: "it runs, says the record", before: func(p *play) { p.relay.Runs(time.Now().Add(-time.Minute)) }, want: Stalled, after: time.Minute},
		{name: "asked again later", before: func(p *play) { p.relay.AskAgain(time.Now().Add(40 * time.Second)) }, want: Due, after: 40 * time.Second},
		{
			name: "headers are held", held: true, stream: true, before: func(p *play) { p.relay.AskAgain(time.Now().Add(80 * time.Second)) },
			want: Due, after: 80 * time.Second, body: ": ping\n\n: ping\n\n", sent: true,
		},
		{
			name: "a filter's answer is not the stream", held: true, before: func(p *play) { p.send(response.Done, "{}") }, want: Ended,
		},
		{
			name: "a stream", held: true, stream: true, before: func(p *play) {
				p.send(response.First, chunk)
				p.send(response.Chunk, done)
				p.send(response.Done, "")
			}, want: Ended, body: chunk + done, sent: true, done: true, chunks: 2,
		},
		{
			name: "a stream without [DONE]", held: true, stream: true, before: func(p *play) {
				p.send(response.First, chunk)
				p.send(response.Done, "")
			}, want: Ended, body: chunk, sent: true, chunks: 1,
		},
		{
			name: "a hole", held: true, stream: true, before: func(p *play) {
				p.send(response.First, chunk)
				p.seq++
				p.send(response.Chunk, chunk)
			}, want: Lost, body: chunk, sent: true, chunks: 1,
		},
		{
			name: "more than may wait", held: true, stream: true, before: func(p *play) {
				p.send(response.First, chunk)
				p.send(response.Chunk, string(make([]byte, 1<<10)))
			}, want: Gone,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(nil, c.held, c.stream)
				defer p.relay.Close()
				if c.before != nil {
					c.before(p)
				}
				begun := time.Now()
				fate, _ := p.relay.Next(t.Context())
				if took := time.Since(begun); fate != c.want || took != c.after {
					t.Errorf("fate %d after %v, want %d after %v", fate, took, c.want, c.after)
				}
				if got := p.rec.Body.String(); got != c.body || p.client.Sent() != c.sent || p.client.Done() != c.done || p.seen.Chunks != c.chunks {
					t.Errorf("%q, sent %v, done %v, %d chunks; want %q, %v, %v, %d", got, p.client.Sent(), p.client.Done(), p.seen.Chunks, c.body, c.sent, c.done, c.chunks)
				}
			})
		})
	}
}

// TestNextAfterDue: a request that runs goes on where it was.
func TestNextAfterDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(nil, true, true)
		defer p.relay.Close()
		if fate, _ := p.relay.Next(t.Context()); fate != Due {
			t.Fatalf("fate %d, want Due", fate)
		}
		p.relay.Runs(time.Now())
		p.send(response.First, chunk+done)
		p.send(response.Done, "")
		if fate, e := p.relay.Next(t.Context()); fate != Ended || e.Kind != response.Done || p.rec.Body.String() != chunk+done {
			t.Errorf("fate %d, %v, %q; want the whole answer", fate, e.Kind, p.rec.Body)
		}
		if got := p.rec.Header().Get("X-Penstock-Node"); got != "n1" || p.seen.Node != "n1" {
			t.Errorf("node %q and %q, want n1 before the status is out", got, p.seen.Node)
		}
	})
}

// broken is a client that does not take bytes, at once or for as long as it is not unhung.
type broken struct {
	*httptest.ResponseRecorder
	hangs  bool
	unhung chan struct{}
}

func (b *broken) Write([]byte) (int, error) {
	if b.hangs {
		<-b.unhung
	}
	return 0, errors.New("broken")
}

func (b *broken) SetWriteDeadline(time.Time) error {
	select {
	case b.unhung <- struct{}{}:
	default:
	}
	return nil
}

// TestGone: a client that takes no bytes ends the request, after the limit of one write
// at the latest, and so does one that leaves.
func TestGone(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(&broken{ResponseRecorder: httptest.NewRecorder(), hangs: hangs, unhung: make(chan struct{}, 1)}, true, true)
			defer p.relay.Close()
			p.send(response.First, chunk)
			begun := time.Now()
			fate, _ := p.relay.Next(t.Context())
			want := time.Duration(0)
			if hangs {
				want = time.Second
			}
			if took := time.Since(begun); fate != Gone || took != want || p.in.WasCut() != hangs {
				t.Errorf("hangs %v: fate %d after %v, cut %v; want Gone after %v", hangs, fate, took, p.in.WasCut(), want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(nil, true, true)
		defer p.relay.Close()
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if fate, _ := p.relay.Next(ctx); fate != Gone {
			t.Errorf("fate %d of a client that left, want Gone", fate)
		}
		p.client.HangUp()
		if p.rec.Code != StatusGone {
			t.Errorf("status %d, want %d where none was out", p.rec.Code, StatusGone)
		}
	})
}

// TestAnswer is a plain answer's bytes and headers.
func TestAnswer(t *testing.T) {
	p := newPlay(nil, false, false)
	defer p.relay.Close()
	if ok := p.client.Answer(http.StatusTeapot, []byte("{}")); !ok {
		t.Error("the client is gone")
	}
	h := p.rec.Header()
	if p.rec.Code != http.StatusTeapot || p.rec.Body.String() != "{}" || h.Get("Content-Type") != "application/json" || h.Get("Content-Length") != "2" || p.client.Sent() {
		t.Errorf("%d %v %q, sent %v", p.rec.Code, h, p.rec.Body, p.client.Sent())
	}
}

// TestTokenAllocatesNothing: from the inbox to the client.
func TestTokenAllocatesNothing(t *testing.T) {
	p := newPlay(&sink{h: http.Header{}}, true, true)
	defer p.relay.Close()
	e := response.Event{Kind: response.Chunk, Attempt: "a", Payload: []byte(chunk)}
	token := func() {
		e.Seq++
		p.in.Push(&e)
		<-p.in.Signal()
		if fate, _ := p.relay.deliver(); fate != Open {
			t.Fatalf("fate %d", fate)
		}
	}
	token()
	token()
	if n := testing.AllocsPerRun(100, token); n != 0 {
		t.Errorf("%v allocations for a token, want 0", n)
	}
}

// sink takes bytes and keeps none.
type sink struct{ h http.Header }

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(int)             {}
func (s *sink) FlushError() error           { return nil }
