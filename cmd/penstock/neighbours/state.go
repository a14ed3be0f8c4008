package neighbours

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"penstock/abort"
)

// MarshalBinary is the whole state for who joins: frames of 4 bytes of length and a
// table or an abort.
func (n *Neighbours) MarshalBinary() ([]byte, error) {
	now := time.Now()
	frame := func(state []byte, add func([]byte) []byte) []byte {
		at := len(state)
		state = add(append(state, 0, 0, 0, 0))
		binary.BigEndian.PutUint32(state[at:], uint32(len(state)-at-4))
		return state
	}
	n.mu.Lock()
	state := frame(nil, func(b []byte) []byte { return n.table.AppendTable(b, now) })
	n.mu.Unlock()
	for _, m := range n.router.Active(now) {
		state = frame(state, func(b []byte) []byte {
			if whole, err := abort.Append(b, &m, *n.keys.Load()); err == nil {
				b = whole
			}
			return b
		})
	}
	return state, nil
}

// Merge takes another's whole state: what can be read of it, and the first error.
func (n *Neighbours) Merge(state []byte) (first error) {
	now := time.Now()
	for len(state) > 0 {
		if len(state) < 4 || uint64(len(state)-4) < uint64(binary.BigEndian.Uint32(state)) {
			return errors.Join(first, errors.New("state of another member is cut short"))
		}
		size := binary.BigEndian.Uint32(state)
		if err := n.take(now, slices.Clone(state[4:4+size])); err != nil && first == nil {
			first = err
		}
		state = state[4+size:]
	}
	return first
}
