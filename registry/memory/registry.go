// Package memory keeps the records of requests in one process: the protocol of
// package registry without a network, and the door that refuses what cannot start
// in time. It is used by standalone.
//
// One mutex guards everything. Every call holds it for O(1) map work, O(log n) in
// the number of records, or one pass over 640 slots per tier for a refusal: a few
// microseconds. Backlog walks all records. Callbacks run without it.
package memory

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/registry"
	"penstock/registry/door"
)

const (
	// sweepEvery is how often Run looks for expired records, paces and models.
	sweepEvery = time.Second
	// silent is how long an owner that cannot renew goes on before it gives up by
	// itself: a finished or cancelled record is remembered at least as long.
	silent = 30 * time.Second
	// recordBytes is charged for a record beside its body.
	recordBytes = 512
)

// Registry implements registry.Records and registry.Directory.
type Registry struct {
	cfg    Config
	append func(reply string, event []byte) error
	cancel func(owner, id, attempt string)

	mu       sync.Mutex // guards all below and every *record
	records  map[string]*record
	live     expiry // not finished
	finished expiry
	lanes    map[lane.Key]*laneCount // only those with something outstanding
	bytes    int64                   // over all lanes
	door     *door.Door
	paced    map[lane.Key]time.Time // earliest regular time of the next start; gone once past
	engines  map[string]registry.Engine
	quota    *quota.Book
	totals   quota.Totals
}

// record is one request. A queued one counts in the backlog, and until it is
// finished in its lane, unless counted is false.
type record struct {
	id, attempt, owner, reply string
	lane                      lane.Key
	state                     registry.State
	until                     time.Time // end of the ownership
	expires                   time.Time
	opened, deadline          time.Time
	place                     int // in its heap
	tokens, rank              int
	bytes                     int64
	tries                     int
	canceled, orphaned        bool
	counted                   bool // false for a record that Renew wrote again
	forecast                  door.Forecast
	charge                    quota.Charge

	out      [][]byte // events to append, in order
	flushing bool     // a goroutine is appending them
}

// laneCount is what a lane holds.
type laneCount struct {
	outstanding int // queued and running
	bytes       int64
	waiting     door.Share // what of it is queued
}

var (
	_ registry.Records   = (*Registry)(nil)
	_ registry.Directory = (*Registry)(nil)
)

// New returns a registry that appends events through appendEvent and tells the
// owner of a running request that it is cancelled through cancel; a cancelled
// queued request is told with owner and attempt "", for every agent's set of
// aborted ids. Neither may block. One request's events are appended in order.
func New(cfg Config, appendEvent func(reply string, event []byte) error, cancel func(owner, id, attempt string)) (*Registry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if appendEvent == nil || cancel == nil {
		return nil, errors.New("registry/memory: appendEvent or cancel is nil; set both")
	}
	if cfg.Rank == nil {
		cfg.Rank = func(string) int { return 0 }
	}
	if cfg.Bounds == nil {
		cfg.Bounds = func(lane.Key) registry.Bounds { return registry.Bounds{} }
	}
	if cfg.Pace == nil {
		cfg.Pace = func(lane.Key) float64 { return 0 }
	}
	if cfg.Live == nil {
		cfg.Live = func(string) bool { return true }
	}
	return &Registry{
		cfg: cfg, append: appendEvent, cancel: cancel,
		records: map[string]*record{}, lanes: map[lane.Key]*laneCount{},
		door:  door.New(time.Now()),
		paced: map[lane.Key]time.Time{}, engines: map[string]registry.Engine{},
		quota: quota.New(),
	}, nil
}

// Run forgets what has expired, once a second, until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			r.sweep(now)
		}
	}
}

func (r *Registry) sweep(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.live) > 0 && !now.Before(r.live[0].expires) {
		r.forget(r.live[0])
	}
	for len(r.finished) > 0 && !now.Before(r.finished[0].expires) {
		r.forget(r.finished[0])
	}
	for k, next := range r.paced {
		if !now.Before(next) {
			delete(r.paced, k)
		}
	}
	for node, e := range r.engines {
		if now.Sub(e.Seen) > engineKept {
			delete(r.engines, node)
		}
	}
	r.door.Sweep(now)
	r.quota.Sweep(now)
}

// Quota is what requests took from their limits, in tokens, since the start.
func (r *Registry) Quota() quota.Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.totals
}

// Len is how many records, finished ones included, and lanes are held.
func (r *Registry) Len() (records, lanes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.records), len(r.lanes)
}

// put adds a live record; Open and Claim call it.
func (r *Registry) put(rec *record, now time.Time) {
	rec.expires = later(rec.deadline, now).Add(registry.Keep)
	r.records[rec.id] = rec
	heap.Push(&r.live, rec)
}

// end moves a live record to the finished ones with its counts given back. A nil
// event means that the caller, who waits for the outcome, needs none. used is in
// tokens; below 0: as much as was reserved.
func (r *Registry) end(rec *record, now time.Time, event []byte, used int) {
	if rec.charge.Tokens > 0 {
		r.quota.Settle(now, &rec.charge, used)
		r.totals.Settle(rec.charge.Tokens, used)
		rec.charge = quota.Charge{}
	}
	if rec.state == registry.Queued && rec.tries == 0 {
		r.door.Left(rec.lane, rec.forecast, rec.opened, now)
	}
	r.uncount(rec, now)
	heap.Remove(&r.live, rec.place)
	rec.state = registry.Finished
	rec.expires = later(rec.deadline, now.Add(silent))
	heap.Push(&r.finished, rec)
	if event != nil {
		rec.out = append(rec.out, event)
	}
	if len(r.finished) > r.cfg.Finished {
		r.forget(r.finished[0])
	}
}

// unsettled is the usage of a record that ends without its owner's word: none where no
// byte was relayed, else as much as was reserved.
func (rec *record) unsettled() int {
	if rec.state == registry.Streaming {
		return -1
	}
	return 0
}

// forget drops a record, finished or not. What one that never ended reserved is spent.
func (r *Registry) forget(rec *record) {
	if rec.state == registry.Finished {
		heap.Remove(&r.finished, rec.place)
	} else {
		r.uncount(rec, rec.expires)
		heap.Remove(&r.live, rec.place)
	}
	delete(r.records, rec.id)
}

// flush releases the lock and appends what waits in rec.out. Where another
// goroutine is at it already, that one takes it along and this call returns at once.
func (r *Registry) flush(rec *record) error {
	defer r.mu.Unlock()
	if rec.flushing {
		for i := range rec.out {
			rec.out[i] = bytes.Clone(rec.out[i]) // the caller uses its bytes again
		}
		return nil
	}
	rec.flushing = true
	var first error
	for len(rec.out) > 0 {
		event := rec.out[0]
		rec.out = rec.out[1:]
		r.mu.Unlock()
		err := r.append(rec.reply, event)
		r.mu.Lock()
		if err != nil && first == nil {
			first = fmt.Errorf("append event of %s: %w", rec.id, err)
		}
	}
	rec.out, rec.flushing = nil, false
	return first
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// expiry is a heap, the soonest to expire first.
type expiry []*record

func (h expiry) Len() int           { return len(h) }
func (h expiry) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }
func (h expiry) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *expiry) Push(x any) {
	rec := x.(*record)
	rec.place = len(*h)
	*h = append(*h, rec)
}

func (h *expiry) Pop() any {
	last := len(*h) - 1
	rec := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return rec
}
