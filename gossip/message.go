package gossip

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
)

// Every message starts with its kind. A direct one goes on with the payload:
//
//	0x01 payload
//
// A broadcast has an id, drawn by its origin, by which receivers know that they
// have seen it and need not tell it on again:
//
//	0x02 id[8] payload
//
// Others are dropped and counted, so that a later version may add kinds.
const (
	direct    = 1
	broadcast = 2

	broadcastHeader = 1 + 8
)

// maxSeen is how many broadcasts are remembered; a copy that comes after as many
// newer ones is delivered and told on again. It takes up to 3 MB.
const maxSeen = 1 << 16

func checkSize(msg []byte) error {
	if len(msg) == 0 || len(msg) > MaxMessage {
		return fmt.Errorf("gossip: a message of %d bytes; send 1 to %d", len(msg), MaxMessage)
	}
	return nil
}

func appendDirect(dst, payload []byte) []byte { return append(append(dst, direct), payload...) }

func newBroadcast(payload []byte) (frame []byte, id uint64) {
	id = rand.Uint64()
	frame = make([]byte, 0, broadcastHeader+len(payload))
	frame = binary.BigEndian.AppendUint64(append(frame, broadcast), id)
	return append(frame, payload...), id
}

// parse splits a received frame; kind is 0 if it is none of ours. The payload
// shares the frame's memory.
func parse(frame []byte) (kind byte, id uint64, payload []byte) {
	switch {
	case len(frame) > 1 && len(frame) <= 1+MaxMessage && frame[0] == direct:
		return direct, 0, frame[1:]
	case len(frame) > broadcastHeader && len(frame) <= broadcastHeader+MaxMessage && frame[0] == broadcast:
		return broadcast, binary.BigEndian.Uint64(frame[1:]), frame[broadcastHeader:]
	}
	return 0, 0, nil
}

// seen is the set of the last broadcasts by id, the oldest out first.
type seen struct {
	mu    sync.Mutex // guards all below
	ids   map[uint64]struct{}
	order []uint64 // a ring once it is full
	next  int      // where the oldest is then
	limit int
}

func newSeen(limit int) *seen { return &seen{ids: map[uint64]struct{}{}, limit: limit} }

// first notes id and reports whether it was not there.
func (s *seen) first(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.ids[id]; ok {
		return false
	}
	s.ids[id] = struct{}{}
	if len(s.order) < s.limit {
		s.order = append(s.order, id)
		return true
	}
	delete(s.ids, s.order[s.next])
	s.order[s.next] = id
	s.next = (s.next + 1) % s.limit
	return true
}
