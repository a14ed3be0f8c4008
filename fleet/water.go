package fleet

import (
	"encoding/binary"
	"time"

	"github.com/cespare/xxhash/v2"
)

// The law "watermark" of the door.
const (
	waterLow      = 0.80 // mean KV usage from which some requests are refused
	waterHigh     = 0.92 // and from which all are
	waterWaiting  = 20   // requests that wait in the engines, per engine; more: all are refused
	waterLeast    = 0.10 // of the requests between the two marks, at least
	waterBlind    = 0.50 // of the requests where no row counts
	waterFraction = 1 << 53
)

// Water is how full the engines of a model are by their gauges, and what share of
// new requests the door refuses for it.
type Water struct {
	Engines int     // whose rows count: at most StaleAfter old, and taking work
	KV      float64 // mean usage, 0..1
	Waiting int     // requests that wait in them, together
	Refuse  float64 // 0..1
}

// Level is the water over the engines of model.
//
//	no row counts                          refuse half
//	mean KV >= 0.92, or waiting > 20 each  refuse all
//	mean KV 0.80..0.92                     refuse (KV - 0.80) / 0.12, at least 10 %
//	below                                  refuse none
func Level(rows []Row, model string, now time.Time) Water {
	var w Water
	m := hash(model)
	for i := range rows {
		if rows[i].serves(m, now) {
			w.Engines++
			w.KV += rows[i].KV
			w.Waiting += rows[i].Waiting
		}
	}
	if w.Engines == 0 {
		w.Refuse = waterBlind
		return w
	}
	w.KV /= float64(w.Engines)
	switch {
	case w.KV >= waterHigh || w.Waiting > w.Engines*waterWaiting:
		w.Refuse = 1
	case w.KV >= waterLow:
		w.Refuse = max((w.KV-waterLow)/(waterHigh-waterLow), waterLeast)
	}
	return w
}

// Refuses draws for one request. The same id gets the same answer from every
// gateway within a whole second, and another draw in the next.
func (w Water) Refuses(id string, now time.Time) bool {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(id)
	var second [8]byte
	binary.BigEndian.PutUint64(second[:], uint64(now.Unix()))
	_, _ = d.Write(second[:])
	return float64(d.Sum64()>>11)/waterFraction < w.Refuse
}
