// Package directory is what a gateway knows of the engines: a cache of the store's
// directory, so that a request normally costs no call, and how fast each model is taken
// up, by the engines' rows. Safe for concurrent use.
package directory

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/fleet"
	"penstock/reason"
	"penstock/registry"
)

// Ages.
const (
	Fresh = time.Second      // a reading this fresh is used as it is
	Gone  = 10 * time.Second // an entry not renewed this long is no live engine

	miss     = 100 * time.Millisecond // age from which a model not found is looked for again
	busy     = 3 * time.Second        // a reading is used this long while another is under way
	old      = 30 * time.Second       // a reading is used this long while the store is away
	wait     = 2 * time.Second        // longest one reading may take
	keepRate = 30 * time.Second       // the last drain rate is used this long without fresh rows
)

// Directory caches the engine directory and remembers the drain rates, so that a
// request normally costs no call.
type Directory struct {
	from registry.Directory
	rows func() []fleet.Row
	why  func(node string) string

	last    atomic.Pointer[Reading]
	reading sync.Mutex // held while one request reads for all

	mu    sync.Mutex
	rates map[string]rate // guarded by mu; by model, only models an engine reported
}

// Reading is the directory as it was once read. Callers change nothing in it.
type Reading struct {
	At      time.Time
	Engines []registry.Engine
	ByModel map[string][]registry.Engine
	Silent  []registry.Engine // engines that have not said yet what they serve
}

type rate struct {
	at         time.Time
	tokens     float64 // per second
	firstToken time.Duration
}

// New makes a directory that has read nothing yet; rows are the engines' rows, why says
// on one line why an engine takes no work where more is known than its entry has. Either
// is nil where there are none.
func New(from registry.Directory, rows func() []fleet.Row, why func(node string) string) *Directory {
	return &Directory{from: from, rows: rows, why: why, rates: map[string]rate{}}
}

// Last is the last reading, whatever its age; nil = there was none.
func (d *Directory) Last() *Reading { return d.last.Load() }

// Read returns the directory, at most maxAge old where the store answers.
func (d *Directory) Read(ctx context.Context, maxAge time.Duration) (*Reading, error) {
	last := d.last.Load()
	if last != nil && time.Since(last.At) <= maxAge {
		return last, nil
	}
	if last != nil && time.Since(last.At) <= busy {
		if !d.reading.TryLock() {
			return last, nil // somebody reads already
		}
	} else {
		d.reading.Lock()
	}
	defer d.reading.Unlock()
	if last = d.last.Load(); last != nil && time.Since(last.At) <= maxAge {
		return last, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait) // it is for others too
	defer cancel()
	engines, err := d.from.Engines(ctx)
	if err != nil {
		if last != nil && time.Since(last.At) <= old {
			return last, nil
		}
		return nil, err
	}
	now := &Reading{At: time.Now(), Engines: engines, ByModel: map[string][]registry.Engine{}}
	for _, e := range engines {
		if len(e.Models) == 0 {
			now.Silent = append(now.Silent, e)
		}
		for _, model := range e.Models {
			now.ByModel[model] = append(now.ByModel[model], e)
		}
	}
	d.last.Store(now)
	return now, nil
}

// Address is where the agent of node is reached, as last read; "" = not known.
func (d *Directory) Address(node string) string {
	if last := d.last.Load(); last != nil {
		if i := slices.IndexFunc(last.Engines, func(e registry.Engine) bool { return e.Node == node }); i >= 0 {
			return last.Engines[i].GRPC
		}
	}
	return ""
}

// Known returns the engines that serve model and are of pool, "" for any, live or lately
// seen. Where none does, it returns those that may, since they have not said what they
// serve, and whether the model is certainly not served here.
func (d *Directory) Known(ctx context.Context, model, pool string) (engines []registry.Engine, unknown bool, err error) {
	var now *Reading
	for _, age := range []time.Duration{Fresh, miss} {
		if now, err = d.Read(ctx, age); err != nil {
			return nil, false, err
		}
		if found := now.ByModel[model]; len(found) > 0 {
			return ofPool(found, pool), false, nil
		}
	}
	return ofPool(now.Silent, pool), len(now.ByModel) > 0 && len(now.Silent) == 0, nil
}

// ofPool are the engines of a hardware class; "" = all.
func ofPool(engines []registry.Engine, pool string) []registry.Engine {
	if pool == "" {
		return engines
	}
	return slices.DeleteFunc(slices.Clone(engines), func(e registry.Engine) bool { return e.Pool != pool })
}

// Rows are the rows of a hardware class; "" = all.
func (d *Directory) Rows(pool string) []fleet.Row {
	if d.rows == nil {
		return nil
	}
	rows := d.rows()
	if pool == "" {
		return rows
	}
	pool = pool[:min(len(pool), fleet.MaxPool)] // as much as a row has of it
	return slices.DeleteFunc(slices.Clone(rows), func(r fleet.Row) bool { return r.Pool != pool })
}

// Drain is how fast the live engines of model and pool take work, and the shortest time
// from start to first token. Without fresh rows the directory still says who
// lives, and the last rate holds for keepRate.
func (d *Directory) Drain(model, pool string, known []registry.Engine, now time.Time) (registry.Drain, time.Duration) {
	rows := d.Rows(pool)
	engines, tokens, firstToken := fleet.Drain(rows, model, now)
	d.mu.Lock()
	defer d.mu.Unlock()
	name := model
	if pool != "" {
		name += " in " + pool // a model's name and a pool's come from the policy and the engines: few
	}
	last, ok := d.rates[name]
	if ok = ok && now.Sub(last.at) <= keepRate; engines > 0 {
		if tokens > 0 {
			d.rates[name] = rate{at: now, tokens: tokens, firstToken: firstToken}
		} else if ok {
			tokens = last.tokens
		}
		return registry.Drain{Engines: engines, Rate: tokens}, firstToken
	}
	if fleet.Known(rows, model, now) {
		return registry.Drain{}, 0
	}
	for i := range known {
		if Live(&known[i], now) {
			engines++
		}
	}
	if ok && engines > 0 {
		return registry.Drain{Engines: engines, Rate: last.tokens}, last.firstToken
	}
	return registry.Drain{Engines: engines}, 0
}

// Live reports whether an engine takes work, by its entry.
func Live(e *registry.Engine, now time.Time) bool {
	return (e.State == reason.OK || e.State == reason.Stale) && now.Sub(e.Seen) <= Gone
}

// Relieved reports whether a tier has relief on an engine of model.
func (d *Directory) Relieved(model string, tier int, now time.Time) bool {
	return d.rows != nil && fleet.Relief(d.rows(), model, now)>>tier&1 == 1
}
