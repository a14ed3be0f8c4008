package abort

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Abort on the wire, version 1, big endian, at most 259 bytes (300 promised):
//
//	at  size  field
//	 0     1  kind, 'A'
//	 1     1  version, 1
//	 2     4  ms until it expires, 1..60,000
//	 6     8  seq
//	14     1  length of the id, 1..64; the id
//	       1  length of the attempt, 0..64; the attempt
//	       1  length of the owner, 0..48; the owner
//	       1  length of the origin, 0..48; the origin
//	       1  length of the MAC, 0 or 16
//	          HMAC-SHA256 of all before it, the first 16 bytes
//
// A reader takes its own version and the one before.
const (
	Kind    = 'A'         // first byte of an encoded abort
	MaxSize = 300         // bytes of it
	MaxID   = 64          // bytes of an id and of an attempt
	MaxName = 48          // bytes of an owner and of an origin; longer names are cut
	MaxLeft = time.Minute // longest life
	Life    = 30 * time.Second

	version       = 1
	oldestVersion = 1
	fixed         = 14 // bytes before the id
	macSize       = 16
)

// Message tells every node that a request is aborted. The record's cancel is the
// truth, also where this never arrives.
type Message struct {
	ID      string
	Attempt string // the one to stop; "" = whichever runs
	Owner   string // node that runs it, as far as the origin knows; "" = not known. Nothing depends on it
	Origin  string // node that says so
	Seq     uint64 // with Origin it names this message
	Left    time.Duration
}

// Fault is what is wrong with an encoded abort. It is the error of Append and Parse,
// and its String a metric label.
type Fault uint8

// The faults.
const (
	ErrMalformed Fault = iota + 1
	ErrVersion         // format version
	ErrForged          // wrong MAC, none where the cluster has a key, or one where it has none
	ErrExpired
	ErrEmpty // no id
	endFault
)

func (f Fault) String() string {
	return [endFault]string{"none", "malformed", "version", "forged", "expired", "empty"}[min(f, endFault-1)]
}

func (f Fault) Error() string { return "abort: message is " + f.String() }

// Faults lists them all, for creating metric labels at start.
func Faults() []Fault { return []Fault{ErrMalformed, ErrVersion, ErrForged, ErrExpired, ErrEmpty} }

// Keys sign and verify. The first signs, all verify, as while a cluster's key is
// rotated. Without any, messages carry no MAC, and only such are taken.
type Keys [][]byte

// NewKeys derives a key from each secret of the cluster, such as the gossip keys.
func NewKeys(secrets ...[]byte) (Keys, error) {
	keys := make(Keys, len(secrets))
	for i, secret := range secrets {
		var err error
		if keys[i], err = hkdf.Key(sha256.New, secret, nil, "penstock abort 1", sha256.Size); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func mac(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(b) // never fails
	return h.Sum(nil)[:macSize]
}

// Append appends m, to be sent now. The error is a Fault: no id, one too long, or no
// time left.
func Append(dst []byte, m *Message, keys Keys) ([]byte, error) {
	left := min(m.Left, MaxLeft) / time.Millisecond
	switch {
	case m.ID == "":
		return dst, ErrEmpty
	case len(m.ID) > MaxID || len(m.Attempt) > MaxID:
		return dst, ErrMalformed
	case left <= 0:
		return dst, ErrExpired
	}
	begin := len(dst)
	dst = append(dst, Kind, version)
	dst = binary.BigEndian.AppendUint32(dst, uint32(left))
	dst = binary.BigEndian.AppendUint64(dst, m.Seq)
	for _, text := range []string{m.ID, m.Attempt, name(m.Owner), name(m.Origin)} {
		dst = append(append(dst, byte(len(text))), text...)
	}
	if len(keys) == 0 {
		return append(dst, 0), nil
	}
	dst = append(dst, macSize)
	return append(dst, mac(keys[0], dst[begin:])...), nil
}

func name(s string) string { return s[:min(len(s), MaxName)] }

// Parse reads and verifies a whole message. The error is a Fault. It keeps nothing
// of b.
func Parse(b []byte, keys Keys) (Message, error) {
	if len(b) < 2 || b[0] != Kind {
		return Message{}, ErrMalformed
	}
	if b[1] < oldestVersion || b[1] > version {
		return Message{}, ErrVersion
	}
	if len(b) < fixed {
		return Message{}, ErrMalformed
	}
	m := Message{Left: time.Duration(binary.BigEndian.Uint32(b[2:])) * time.Millisecond, Seq: binary.BigEndian.Uint64(b[6:])}
	at := fixed
	for _, field := range []struct {
		text  *string
		limit int
	}{{&m.ID, MaxID}, {&m.Attempt, MaxID}, {&m.Owner, MaxName}, {&m.Origin, MaxName}} {
		if at >= len(b) || int(b[at]) > field.limit || at+1+int(b[at]) > len(b) {
			return Message{}, ErrMalformed
		}
		end := at + 1 + int(b[at])
		*field.text, at = string(b[at+1:end]), end
	}
	switch {
	case at >= len(b) || int(b[at]) != len(b)-at-1 || m.Left > MaxLeft:
		return Message{}, ErrMalformed
	case !verified(b[:at+1], b[at+1:], keys):
		return Message{}, ErrForged
	case m.ID == "":
		return Message{}, ErrEmpty
	case m.Left == 0:
		return Message{}, ErrExpired
	}
	return m, nil
}

func verified(b, sum []byte, keys Keys) bool {
	if len(keys) == 0 {
		return len(sum) == 0
	}
	for _, key := range keys {
		if hmac.Equal(mac(key, b), sum) {
			return true
		}
	}
	return false
}
