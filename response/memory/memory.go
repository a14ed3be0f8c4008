// Package memory is the token stream of a standalone penstock: a mailbox is a
// function, and appending an event calls it.
package memory

import (
	"fmt"
	"sync"

	"penstock/response"
)

// Bus holds the open mailboxes. It is safe for concurrent use and has no
// goroutine, no buffer and no bound of its own: a writer is never ahead of what
// the mailbox's function has taken.
type Bus struct {
	boxes sync.Map // reply address -> *mailbox
}

type mailbox struct{ handle func(response.Event) }

// New returns a bus without mailboxes.
func New() *Bus { return &Bus{} }

// Open makes handle the mailbox at reply; an address that is open is an error.
// handle is called in the goroutine of whoever appends (one hop less per token),
// so it must never wait for a client or a lock held for long, and by many
// goroutines at once, though for one attempt by one after the other. It copies
// what it keeps of Payload: the bytes are the writer's again when it returns.
// After close an append answers response.ErrGone; a call of handle that is under
// way may still finish.
func (b *Bus) Open(reply string, handle func(response.Event)) (close func(), err error) {
	box := &mailbox{handle: handle}
	if _, open := b.boxes.LoadOrStore(reply, box); open {
		return nil, fmt.Errorf("response: mailbox %q is open already", reply)
	}
	return func() { b.boxes.CompareAndDelete(reply, box) }, nil
}

// Append gives an encoded event to the mailbox at reply and returns when its
// function has: response.ErrGone where none is open, Parse's error for bytes that
// are no event. event may be reused afterwards.
func (b *Bus) Append(reply string, event []byte) error {
	box, open := b.boxes.Load(reply)
	if !open {
		return response.ErrGone
	}
	e, err := response.Parse(event)
	if err != nil {
		return fmt.Errorf("mailbox %q: %w", reply, err)
	}
	box.(*mailbox).handle(e)
	return nil
}
