package fleet

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"penstock/reason"
)

// Row on the wire, version 3, big endian, 60 to 200 bytes:
//
//	at  size  field
//	 0     1  kind, 'R'
//	 1     1  version, 1 to 3
//	 2     8  engine
//	10     8  incarnation
//	18     8  seq
//	26     4  age in ms when it was sent
//	30     1  state: 1 ok, 2 stale, 3 blind, 4 stuck, 5 asleep, 6 draining, 7 starting,
//	         8 GPU lost, 9 GPU fault
//	31     2  KV permille, 0..1000
//	33     2  running
//	35     2  waiting
//	37     4  step time in µs, 0 = not known
//	41     4  freeness in tokens
//	45     4  drain rate in hundredths of a token per second, 0 = not known
//	49     4  time to first token in ms
//	53     4  predicted start in ms from now
//	57     1  number of models n, 0..8
//	58    8n  their hashes, none of them 0
//	       1  length of the node name, 0..48, from version 3 on 0..45
//	          node name
//	       1  length of the pool, 0..24
//	          pool
//	       2  from version 2 on: tiers that have relief
//	       4  from version 3 on: first 4 bytes of the hash of the policy in force, 0 = none
//	       1  from version 3 on: whose row it is: 0 an agent's, 1 a gateway's
//
// A row is sent as the lowest version that has all it says, so that earlier readers
// take it: without policy and of an agent as version 2, and without relief as 1.
//
// Numbers too large for their field are sent as the largest, strings too long are
// cut. Only an age crosses the wire, never a time, so clocks need not agree: At on
// the reader's clock is when the row came less its age, late by the time it
// traveled. Any change of this layout, a new state code too, is a new version; a
// reader takes its own and the two before.
//
// Table on the wire, version 1, at most 201,002 bytes:
//
//	0     1  kind, 'T'
//	1     1  version, 1
//	         for each row: 1 byte length, the row as above
const (
	KindRow   = 'R' // first byte of a row
	KindTable = 'T' // first byte of a table
	MaxSize   = 200 // bytes of an encoded row
	MaxNode   = 48  // bytes; 45 from version 3 on, so that no row grows over MaxSize
	MaxPool   = 24  // bytes

	rowVersion   = 3
	reliefRow    = 2 // the first version with relief
	oldestRow    = 1
	tableVersion = 1
	oldestTable  = 1
	rowFixed     = 58 // bytes before the model hashes
	shortNode    = 45 // MaxNode from version 3 on
)

// Errors of ParseRow and Table.Merge; callers count them apart.
var (
	ErrVersion   = errors.New("fleet: format version not known")
	ErrMalformed = errors.New("fleet: malformed")
)

// tails are the bytes behind the pool, by version.
var tails = [...]int{1: 0, 2: 2, 3: 7}

// states by their code on the wire. A Reason's own number may change.
var states = [...]reason.Reason{1: reason.OK, reason.Stale, reason.Blind, reason.Stuck, reason.Asleep, reason.Draining, reason.Starting, reason.GPULost, reason.GPUFault}

// stateCode is blind for what is no state of an engine: it takes no work then.
func stateCode(r reason.Reason) byte {
	for code, state := range states {
		if state == r && code > 0 {
			return byte(code)
		}
	}
	return 3
}

// AppendRow appends r as it is sent at now. It allocates nothing where dst has
// MaxSize bytes left.
func AppendRow(dst []byte, r *Row, now time.Time) []byte {
	version := byte(oldestRow)
	switch {
	case r.Policy != 0 || r.Gateway:
		version = rowVersion
	case r.Relief != 0:
		version = reliefRow
	}
	dst = append(dst, KindRow, version)
	dst = binary.BigEndian.AppendUint64(dst, r.Engine)
	dst = binary.BigEndian.AppendUint64(dst, r.Incarnation)
	dst = binary.BigEndian.AppendUint64(dst, r.Seq)
	dst = append32(dst, now.Sub(r.At)/time.Millisecond)
	dst = append(dst, stateCode(r.State))
	dst = append16(dst, int(math.Round(min(max(r.KV, 0), 1)*1000)))
	dst = append16(dst, r.Running)
	dst = append16(dst, r.Waiting)
	dst = append32(dst, r.Step/time.Microsecond)
	dst = append32(dst, r.Freeness)
	dst = append32(dst, int64(math.Round(min(max(r.DrainRate, 0), math.MaxUint32)*100)))
	dst = append32(dst, r.FirstToken/time.Millisecond)
	dst = append32(dst, r.Start/time.Millisecond)
	n := 0
	for n < MaxModels && r.Models[n] != 0 {
		n++
	}
	dst = append(dst, byte(n))
	for _, model := range r.Models[:n] {
		dst = binary.BigEndian.AppendUint64(dst, model)
	}
	node := MaxNode
	if version == rowVersion {
		node = shortNode
	}
	dst = appendText(appendText(dst, r.Node, node), r.Pool, MaxPool)
	if version >= reliefRow {
		dst = append16(dst, int(r.Relief))
	}
	if version == rowVersion {
		dst = binary.BigEndian.AppendUint32(dst, r.Policy)
		role := byte(0)
		if r.Gateway {
			role = 1
		}
		dst = append(dst, role)
	}
	return dst
}

func append16(dst []byte, v int) []byte {
	return binary.BigEndian.AppendUint16(dst, uint16(min(max(v, 0), math.MaxUint16)))
}

func append32[T ~int | ~int64](dst []byte, v T) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(min(max(int64(v), 0), math.MaxUint32)))
}

func appendText(dst []byte, s string, limit int) []byte {
	s = s[:min(len(s), limit)]
	return append(append(dst, byte(len(s))), s...)
}

// ParseRow reads a whole row that came at now. It keeps nothing of b.
func ParseRow(b []byte, now time.Time) (Row, error) {
	if len(b) < 2 || b[0] != KindRow {
		return Row{}, ErrMalformed
	}
	if b[1] < oldestRow || b[1] > rowVersion {
		return Row{}, ErrVersion
	}
	if len(b) < rowFixed {
		return Row{}, ErrMalformed
	}
	u16 := func(at int) int { return int(binary.BigEndian.Uint16(b[at:])) }
	u32 := func(at int) int64 { return int64(binary.BigEndian.Uint32(b[at:])) }
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	state, kv, n := int(b[30]), u16(31), int(b[57])
	if u64(2) == 0 || state == 0 || state >= len(states) || kv > 1000 || n > MaxModels || len(b) < rowFixed+8*n {
		return Row{}, ErrMalformed
	}
	r := Row{
		Engine: u64(2), Incarnation: u64(10), Seq: u64(18),
		At: now.Add(-time.Duration(u32(26)) * time.Millisecond), State: states[state], KV: float64(kv) / 1000,
		Running: u16(33), Waiting: u16(35), Step: time.Duration(u32(37)) * time.Microsecond,
		Freeness: int(u32(41)), DrainRate: float64(u32(45)) / 100,
		FirstToken: time.Duration(u32(49)) * time.Millisecond, Start: time.Duration(u32(53)) * time.Millisecond,
	}
	for i := range n {
		if r.Models[i] = u64(rowFixed + 8*i); r.Models[i] == 0 {
			return Row{}, ErrMalformed
		}
	}
	var ok bool
	version := b[1]
	if r.Node, b, ok = cutText(b[rowFixed+8*n:], MaxNode); !ok {
		return Row{}, ErrMalformed
	}
	if r.Pool, b, ok = cutText(b, MaxPool); !ok || len(b) != tails[version] {
		return Row{}, ErrMalformed
	}
	if version >= reliefRow {
		r.Relief = binary.BigEndian.Uint16(b)
	}
	if version == rowVersion {
		if b[6] > 1 {
			return Row{}, ErrMalformed
		}
		r.Policy, r.Gateway = binary.BigEndian.Uint32(b[2:]), b[6] == 1
	}
	return r, nil
}

func cutText(b []byte, limit int) (text string, rest []byte, ok bool) {
	if len(b) == 0 || int(b[0]) > limit || len(b) < 1+int(b[0]) {
		return "", nil, false
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], true
}
