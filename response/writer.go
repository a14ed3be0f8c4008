package response

import "errors"

// ErrEnded is returned by a Writer after its terminal event.
var ErrEnded = errors.New("response: attempt has ended")

// Writer numbers and encodes the events of one attempt. Agents use one per
// attempt, from one goroutine at a time.
type Writer struct {
	id, attempt, reply string
	append             func(reply string, event []byte) error
	seq                uint64
	buf                []byte // of the last event, reused
	ended              bool
}

// NewWriter writes to the mailbox reply through append, which keeps nothing of
// event after it returned.
func NewWriter(id, attempt, reply string, append func(reply string, event []byte) error) *Writer {
	return &Writer{id: id, attempt: attempt, reply: reply, append: append}
}

// Encode gives e its ID, Attempt and the next Seq and returns its encoded form,
// valid until the next call. The First and terminal events go this way, for the
// record store appends them together with its own step; repeat a call that timed
// out with the same bytes. A refused event (ErrEnded, ErrTooLarge) uses no number,
// so that a smaller one may take its place.
func (w *Writer) Encode(e Event) ([]byte, error) {
	if w.ended {
		return nil, ErrEnded
	}
	e.ID, e.Attempt, e.Seq = w.id, w.attempt, w.seq+1
	if err := e.Check(); err != nil {
		return nil, err
	}
	w.seq++
	w.ended = e.Kind.Terminal()
	w.buf = Append(w.buf[:0], &e)
	return w.buf, nil
}

// Append encodes e and appends it to the mailbox: chunks and heartbeats. Its
// number is used even where append fails, so an event that was lost shows as a
// hole to the reader.
func (w *Writer) Append(e Event) error {
	event, err := w.Encode(e)
	if err != nil {
		return err
	}
	return w.append(w.reply, event)
}
