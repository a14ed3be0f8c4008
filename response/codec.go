package response

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"penstock/reason"
)

// The encoded form of an Event. Integers are unsigned LEB128 varints
// (encoding/binary's Uvarint), text is one length byte and up to 255 bytes.
//
//	version  1 byte   Version
//	kind     1 byte   First..Dropped
//	seq      varint   from 1, 64 bits
//	id       text
//	attempt  text     empty where the request never started
//	-- First and terminal kinds only
//	status   varint   HTTP status, 31 bits like every number below
//	node     text
//	tries    varint
//	queued   varint   nanoseconds, 63 bits
//	-- terminal kinds only
//	reason   text     its name: names are stable, numbers are not; empty for None
//	known    1 byte   0 or 1
//	prompt, output, cached   varint, tokens
//	-- all kinds
//	payload  the rest, at most MaxPayload
//
// The event carries no length of its own: what moves it keeps its borders (one
// stream entry, one call). A chunk costs 70 bytes beside its payload.

// MaxPayload is the largest payload of an event, in bytes: a whole answer that is
// not streamed.
const MaxPayload = 64 << 20

// MaxText is the longest ID, Attempt or Node, in bytes.
const MaxText = 255

// ErrMalformed is returned by Parse for bytes that are no event.
var ErrMalformed = errors.New("response: malformed event")

// ErrTooLarge says that a payload or text passes its limit.
var ErrTooLarge = errors.New("response: event too large")

// VersionError is returned by Parse for a format version it does not read.
type VersionError byte

func (v VersionError) Error() string {
	return fmt.Sprintf("response: event has format version %d, this reader knows %d", byte(v), Version)
}

// Check returns ErrTooLarge where Append could not carry e whole.
func (e *Event) Check() error {
	for _, text := range [...]string{e.ID, e.Attempt, e.Node} {
		if len(text) > MaxText {
			return fmt.Errorf("%w: text of %d bytes, at most %d", ErrTooLarge, len(text), MaxText)
		}
	}
	if len(e.Payload) > MaxPayload {
		return fmt.Errorf("%w: payload of %d bytes, at most %d", ErrTooLarge, len(e.Payload), MaxPayload)
	}
	return nil
}

// Terminal encodes the event of a request that the record store ends by itself: its
// attempt failed, and why. A registry's Config takes it.
func Terminal(id, attempt string, why reason.Reason) []byte {
	return Append(nil, &Event{ID: id, Attempt: attempt, Seq: 1, Kind: Failed, Reason: why})
}

// Append appends the encoded form of e to dst. It does not allocate when dst has
// room. Fields that do not travel with e's kind are left out, negative numbers
// become 0, numbers past their width and texts past MaxText are cut; a caller
// whose events may pass the limits asks Check first.
func Append(dst []byte, e *Event) []byte {
	dst = append(dst, Version, byte(e.Kind))
	dst = binary.AppendUvarint(dst, e.Seq)
	dst = appendText(dst, e.ID)
	dst = appendText(dst, e.Attempt)
	if e.Kind == First || e.Kind.Terminal() {
		dst = appendInt(dst, e.Status)
		dst = appendText(dst, e.Node)
		dst = appendInt(dst, e.Tries)
		dst = binary.AppendUvarint(dst, uint64(max(e.Queued, 0)))
	}
	if e.Kind.Terminal() {
		name := ""
		if e.Reason != reason.None {
			name = e.Reason.String()
		}
		dst = appendText(dst, name)
		known := byte(0)
		if e.Usage.Known {
			known = 1
		}
		dst = append(dst, known)
		dst = appendInt(dst, e.Usage.Prompt)
		dst = appendInt(dst, e.Usage.Output)
		dst = appendInt(dst, e.Usage.Cached)
	}
	return append(dst, e.Payload...)
}

func appendText(dst []byte, text string) []byte {
	text = text[:min(len(text), MaxText)]
	dst = append(dst, byte(len(text)))
	return append(dst, text...)
}

func appendInt(dst []byte, n int) []byte {
	return binary.AppendUvarint(dst, uint64(min(max(n, 0), math.MaxInt32)))
}

// Parse reads one encoded event. Payload aliases b, nil when empty; the texts are
// copied: one allocation for a chunk, two where a node name is given. An unknown
// version is a VersionError, a reason that this build does not know is None,
// anything else it cannot read is ErrMalformed.
func Parse(b []byte) (Event, error) {
	if len(b) == 0 {
		return Event{}, fmt.Errorf("%w: empty", ErrMalformed)
	}
	if b[0] != Version {
		return Event{}, VersionError(b[0])
	}
	r := reader{rest: b[1:]}
	e := Event{Kind: Kind(r.byte()), Seq: r.uint(math.MaxUint64)}
	if e.Kind < First || e.Kind >= kindEnd {
		return Event{}, fmt.Errorf("%w: kind %d", ErrMalformed, e.Kind)
	}
	names := r.rest
	id, attempt := len(r.text()), len(r.text())
	if !r.bad {
		both := string(names[1 : id+attempt+2]) // one allocation; the byte between is attempt's length
		e.ID, e.Attempt = both[:id], both[id+1:]
	}
	if e.Kind == First || e.Kind.Terminal() {
		e.Status = int(r.uint(math.MaxInt32))
		e.Node = string(r.text())
		e.Tries = int(r.uint(math.MaxInt32))
		e.Queued = time.Duration(r.uint(math.MaxInt64))
	}
	if e.Kind.Terminal() {
		e.Reason = reasons[string(r.text())]
		known := r.byte()
		r.bad = r.bad || known > 1
		e.Usage = Usage{Known: known == 1}
		e.Usage.Prompt = int(r.uint(math.MaxInt32))
		e.Usage.Output = int(r.uint(math.MaxInt32))
		e.Usage.Cached = int(r.uint(math.MaxInt32))
	}
	if r.bad || len(r.rest) > MaxPayload {
		return Event{}, fmt.Errorf("%w: %d bytes of kind %d", ErrMalformed, len(b), e.Kind)
	}
	if len(r.rest) > 0 {
		e.Payload = r.rest
	}
	return e, nil
}

// reasons finds a Reason by the name it travels under.
var reasons = func() map[string]reason.Reason {
	byName := make(map[string]reason.Reason)
	for _, r := range reason.All() {
		byName[r.String()] = r
	}
	return byName
}()

// reader takes fields off rest; after the first that does not fit it is bad and
// returns zeros.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) fail() {
	r.bad = true
	r.rest = nil
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.fail()
		return 0
	}
	v := r.rest[0]
	r.rest = r.rest[1:]
	return v
}

func (r *reader) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > limit {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) text() []byte {
	n := int(r.byte())
	if n > len(r.rest) {
		r.fail()
		return nil
	}
	v := r.rest[:n]
	r.rest = r.rest[n:]
	return v
}
