// Package responsetest is the contract of package response as tests: every
// implementation passes Run. Events may arrive after Append returned, so what
// waits for them waits with a limit.
package responsetest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
	"penstock/response"
)

// Harness is one empty transport under test.
type Harness struct {
	// Open makes handle the mailbox at reply, until close.
	Open func(reply string, handle func(response.Event)) (close func(), err error)
	// Append appends an encoded event.
	Append func(reply string, event []byte) error
}

// Spec says what is under test.
type Spec struct {
	// Start returns a transport without mailboxes. It cleans up with t.Cleanup.
	Start func(t *testing.T) Harness
	Lag   time.Duration // longest time until an appended event arrives, or a closed mailbox is gone
}

// Run runs the suite, each case on a transport of its own.
func Run(t *testing.T, spec Spec) {
	for _, c := range []struct {
		name string
		run  func(r *rig)
	}{
		{"events arrive whole", arriveWhole},
		{"events of an attempt arrive in order", inOrder},
		{"requests share a mailbox", shareMailbox},
		{"mailboxes are apart", apart},
		{"a gone mailbox says so", gone},
		{"a mailbox opened again begins empty", openedAgain},
		{"a large answer arrives", large},
		{"the writer has its bytes back", bytesBack},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(&rig{T: t, spec: spec, Harness: spec.Start(t)}) })
	}
}

type rig struct {
	*testing.T
	Harness
	spec Spec
}

// mailbox collects what arrives at one address.
type mailbox struct {
	r     *rig
	close func()

	mu      sync.Mutex // guards all below
	events  []response.Event
	arrived chan struct{} // closed and made anew with each event
}

func (r *rig) mailbox(reply string) *mailbox {
	r.Helper()
	m := &mailbox{r: r, arrived: make(chan struct{})}
	closeBox, err := r.Open(reply, m.handle)
	if err != nil {
		r.Fatalf("open %s: %v", reply, err)
	}
	m.close = closeBox
	r.Cleanup(closeBox)
	return m
}

func (m *mailbox) handle(e response.Event) {
	e.Payload = append([]byte(nil), e.Payload...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, e)
	close(m.arrived)
	m.arrived = make(chan struct{})
}

// wait returns the first n events, repeated ones left out.
func (m *mailbox) wait(n int) []response.Event {
	m.r.Helper()
	limit := time.After(m.r.spec.Lag)
	for {
		m.mu.Lock()
		events, arrived := once(m.events), m.arrived
		m.mu.Unlock()
		if len(events) >= n {
			return events
		}
		select {
		case <-arrived:
		case <-limit:
			m.r.Fatalf("%d events within %v, want %d", len(events), m.r.spec.Lag, n)
		}
	}
}

// once leaves out what arrived before: at least once is the promise.
func once(events []response.Event) []response.Event {
	type number struct {
		id, attempt string
		seq         uint64
	}
	seen := map[number]bool{}
	var first []response.Event
	for _, e := range events {
		n := number{e.ID, e.Attempt, e.Seq}
		if !seen[n] {
			seen[n] = true
			first = append(first, e)
		}
	}
	return first
}

func (r *rig) append(reply string, e response.Event) {
	r.Helper()
	if err := r.Append(reply, response.Append(nil, &e)); err != nil {
		r.Fatalf("append event %d of %s: %v", e.Seq, e.ID, err)
	}
}

func hex(n int) string { return fmt.Sprintf("%032x", n) }

func arriveWhole(r *rig) {
	id, attempt := hex(1), hex(2)
	want := []response.Event{
		{
			ID: id, Attempt: attempt, Seq: 1, Kind: response.First, Status: 200, Node: "gpu-1", Tries: 2,
			Queued: 1500 * time.Millisecond, Payload: []byte("data: {\"a\":\"\\u0000\"}\n\n"),
		},
		{ID: id, Attempt: attempt, Seq: 2, Kind: response.Chunk, Payload: []byte("data: \x00\xff\n\n")},
		{ID: id, Attempt: attempt, Seq: 3, Kind: response.Heartbeat},
		{
			ID: id, Attempt: attempt, Seq: 4, Kind: response.Done, Status: 200, Reason: reason.Finished, Node: "gpu-1", Tries: 2,
			Queued: 1500 * time.Millisecond, Usage: response.Usage{Prompt: 10, Output: 20, Cached: 5, Known: true}, Payload: []byte("data: [DONE]\n\n"),
		},
		{ID: hex(3), Seq: 1, Kind: response.Dropped, Reason: reason.DeadlinePassed, Queued: 30 * time.Second},
	}
	m := r.mailbox("gw")
	for _, e := range want {
		r.append("gw", e)
	}
	// An absent payload is nil or empty, as the transport likes.
	empty := cmp.Transformer("payload", func(b []byte) string { return string(b) })
	if diff := cmp.Diff(want, m.wait(len(want)), empty); diff != "" {
		r.Errorf("events on arrival (-want +got):\n%s", diff)
	}
}

// write writes a stream of n events, the last one terminal.
func (r *rig) write(reply, id, attempt string, n int) {
	w := response.NewWriter(id, attempt, reply, r.Append)
	for i := range n {
		e := response.Event{Kind: response.Chunk, Payload: fmt.Appendf(nil, "%s %d", id, i+1)}
		switch i {
		case 0:
			e.Kind = response.First
		case n - 1:
			e.Kind = response.Done
		}
		if err := w.Append(e); err != nil {
			r.Errorf("append event %d of %s: %v", i+1, id, err)
			return
		}
	}
	if err := w.Append(response.Event{Kind: response.Chunk}); !errors.Is(err, response.ErrEnded) {
		r.Errorf("an event after the terminal one = %v, want ErrEnded", err)
	}
}

// holds says whether events of one attempt are a stream as write wrote it.
func (r *rig) holds(events []response.Event, id string, n int) {
	r.Helper()
	if len(events) != n {
		r.Errorf("%d events of %s, want %d", len(events), id, n)
	}
	for i, e := range events {
		if e.Seq != uint64(i+1) || e.Kind.Terminal() != (i == n-1) || string(e.Payload) != fmt.Sprintf("%s %d", id, i+1) {
			r.Fatalf("event %d of %s is seq %d, kind %d, %q", i+1, id, e.Seq, e.Kind, e.Payload)
		}
	}
}

func inOrder(r *rig) {
	const n = 500
	m := r.mailbox("gw")
	r.write("gw", hex(1), hex(2), n)
	r.holds(m.wait(n), hex(1), n)
}

func shareMailbox(r *rig) {
	const writers, n = 8, 100
	m := r.mailbox("gw")
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() { r.write("gw", hex(w), hex(100+w), n) })
	}
	wg.Wait()
	byID := map[string][]response.Event{}
	for _, e := range m.wait(writers * n) {
		byID[e.ID] = append(byID[e.ID], e)
	}
	for w := range writers {
		r.holds(byID[hex(w)], hex(w), n)
	}
}

func apart(r *rig) {
	one, two := r.mailbox("gw-1"), r.mailbox("gw-2")
	r.write("gw-1", hex(1), hex(1), 3)
	r.write("gw-2", hex(2), hex(2), 3)
	r.holds(one.wait(3), hex(1), 3)
	r.holds(two.wait(3), hex(2), 3)
}

// untilGone appends until the mailbox is said to be gone.
func (r *rig) untilGone(reply string) {
	r.Helper()
	limit := time.Now().Add(r.spec.Lag)
	e := response.Append(nil, &response.Event{ID: hex(9), Attempt: hex(9), Seq: 1, Kind: response.Heartbeat})
	for {
		err := r.Append(reply, e)
		if errors.Is(err, response.ErrGone) {
			return
		}
		if err != nil || time.Now().After(limit) {
			r.Fatalf("append to a gone mailbox = %v, want ErrGone", err)
		}
	}
}

func gone(r *rig) {
	r.untilGone("never-open")
	m := r.mailbox("gw")
	r.append("gw", response.Event{ID: hex(1), Attempt: hex(1), Seq: 1, Kind: response.Heartbeat})
	m.wait(1)
	m.close()
	r.untilGone("gw")
	m.close() // once more is harmless
}

func openedAgain(r *rig) {
	before := r.mailbox("gw")
	r.write("gw", hex(1), hex(1), 3)
	before.wait(3)
	before.close()
	r.untilGone("gw")
	after := r.mailbox("gw")
	before.close() // nor does it close what is open now
	r.write("gw", hex(2), hex(2), 3)
	r.holds(after.wait(3), hex(2), 3)
}

func large(r *rig) {
	m := r.mailbox("gw")
	body := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16) // 1 MiB
	r.append("gw", response.Event{ID: hex(1), Attempt: hex(1), Seq: 1, Kind: response.Done, Status: 200, Payload: body})
	if got := m.wait(1)[0].Payload; !bytes.Equal(got, body) {
		r.Errorf("a body of %d bytes arrived with %d, or changed", len(body), len(got))
	}
}

func bytesBack(r *rig) {
	m := r.mailbox("gw")
	var buf []byte
	for seq := range uint64(50) {
		e := response.Event{ID: hex(1), Attempt: hex(1), Seq: seq + 1, Kind: response.Chunk, Payload: fmt.Appendf(nil, "number %2d", seq+1)}
		buf = response.Append(buf[:0], &e)
		if err := r.Append("gw", buf); err != nil {
			r.Fatalf("append: %v", err)
		}
		clear(buf)
	}
	for i, e := range m.wait(50) {
		if want := fmt.Sprintf("number %2d", i+1); string(e.Payload) != want {
			r.Errorf("event %d carries %q, want %q", i+1, e.Payload, want)
		}
	}
}
