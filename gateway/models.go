package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/fleet"
	"penstock/gateway/refuse"
	"penstock/reason"
	"penstock/registry"
)

const (
	directoryAge  = time.Second            // a reading this fresh is used as it is
	directoryMiss = 100 * time.Millisecond // age from which a model not found is looked for again
	directoryBusy = 3 * time.Second        // a reading is used this long while another is under way
	directoryOld  = 30 * time.Second       // a reading is used this long while the store is away
	directoryWait = 2 * time.Second        // longest one reading may take
	engineGone    = 10 * time.Second       // an entry not renewed this long is no live engine
	keepRate      = 30 * time.Second       // the last drain rate is used this long without fresh rows
)

// directory caches the engine directory and remembers the drain rates, so that a
// request normally costs no call.
type directory struct {
	from registry.Directory
	rows func() []fleet.Row

	last    atomic.Pointer[reading]
	reading sync.Mutex // held while one request reads for all

	mu    sync.Mutex
	rates map[string]rate // guarded by mu; by model, only models an engine reported
}

type reading struct {
	at      time.Time
	engines []registry.Engine
	byModel map[string][]registry.Engine
	silent  []registry.Engine // engines that have not said yet what they serve
}

type rate struct {
	at         time.Time
	tokens     float64 // per second
	firstToken time.Duration
}

// read returns the directory, at most maxAge old where the store answers.
func (d *directory) read(ctx context.Context, maxAge time.Duration) (*reading, error) {
	last := d.last.Load()
	if last != nil && time.Since(last.at) <= maxAge {
		return last, nil
	}
	if last != nil && time.Since(last.at) <= directoryBusy {
		if !d.reading.TryLock() {
			return last, nil // somebody reads already
		}
	} else {
		d.reading.Lock()
	}
	defer d.reading.Unlock()
	if last = d.last.Load(); last != nil && time.Since(last.at) <= maxAge {
		return last, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), directoryWait) // it is for others too
	defer cancel()
	engines, err := d.from.Engines(ctx)
	if err != nil {
		if last != nil && time.Since(last.at) <= directoryOld {
			return last, nil
		}
		return nil, err
	}
	now := &reading{at: time.Now(), engines: engines, byModel: map[string][]registry.Engine{}}
	for _, e := range engines {
		if len(e.Models) == 0 {
			now.silent = append(now.silent, e)
		}
		for _, model := range e.Models {
			now.byModel[model] = append(now.byModel[model], e)
		}
	}
	d.last.Store(now)
	return now, nil
}

// address is where the agent of node is reached, as last read; "" = not known.
func (d *directory) address(node string) string {
	if last := d.last.Load(); last != nil {
		if i := slices.IndexFunc(last.engines, func(e registry.Engine) bool { return e.Node == node }); i >= 0 {
			return last.engines[i].GRPC
		}
	}
	return ""
}

// known returns the engines that serve model and are of pool, "" for any, live or lately seen. Where none does,
// it returns those that may, since they have not said what they serve, and whether
// the model is certainly not served here.
func (d *directory) known(ctx context.Context, model, pool string) (engines []registry.Engine, unknown bool, err error) {
	var now *reading
	for _, age := range []time.Duration{directoryAge, directoryMiss} {
		if now, err = d.read(ctx, age); err != nil {
			return nil, false, err
		}
		if found := now.byModel[model]; len(found) > 0 {
			return ofPool(found, pool), false, nil
		}
	}
	return ofPool(now.silent, pool), len(now.byModel) > 0 && len(now.silent) == 0, nil
}

// ofPool are the engines of a hardware class; "" = all.
func ofPool(engines []registry.Engine, pool string) []registry.Engine {
	if pool == "" {
		return engines
	}
	return slices.DeleteFunc(slices.Clone(engines), func(e registry.Engine) bool { return e.Pool != pool })
}

// rowsOf are the rows of a hardware class; "" = all.
func (d *directory) rowsOf(pool string) []fleet.Row {
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

// drain is how fast the live engines of model and pool take work, and the shortest time
// from start to first token. Without fresh rows the directory still says who
// lives, and the last rate holds for keepRate.
func (d *directory) drain(model, pool string, known []registry.Engine, now time.Time) (registry.Drain, time.Duration) {
	rows := d.rowsOf(pool)
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
		if live(&known[i], now) {
			engines++
		}
	}
	if ok && engines > 0 {
		return registry.Drain{Engines: engines, Rate: last.tokens}, last.firstToken
	}
	return registry.Drain{Engines: engines}, 0
}

// water refuses by the law "watermark".
func (d *directory) water(model, pool, id string, now time.Time) *refuse.Refusal {
	w := fleet.Level(d.rowsOf(pool), model, now)
	if !w.Refuses(id, now) {
		return nil
	}
	f := &refuse.Refusal{Reason: reason.Overloaded, Model: model}
	if f.Detail = fmt.Sprintf("How full the engines for model '%s' are is not known.", model); w.Engines > 0 {
		f.Detail = fmt.Sprintf("The engines for model '%s' are full: %.0f %% of their KV cache, %s waiting in %s.", model, 100*w.KV, refuse.Count(w.Waiting, "request"), refuse.Count(w.Engines, "engine"))
	}
	return f
}

func live(e *registry.Engine, now time.Time) bool {
	return (e.State == reason.OK || e.State == reason.Stale) && now.Sub(e.Seen) <= engineGone
}

// noEngine words why none of the engines that are known for a model takes work: by
// the one heard of last.
func (g *Gateway) noEngine(model, pool string, known []registry.Engine, now time.Time) *refuse.Refusal {
	f := &refuse.Refusal{Reason: reason.NoEngine, Model: model}
	if len(known) == 0 {
		if pool != "" {
			f.Detail = fmt.Sprintf("No engine for model '%s' is in the pool '%s', where the policy sends this request.", model, pool)
		}
		return f
	}
	newest := slices.MaxFunc(known, func(a, b registry.Engine) int { return a.Seen.Compare(b.Seen) })
	why := g.cause(&newest, now)
	if age := now.Sub(newest.Seen); age > engineGone {
		if why != "" {
			why = ": " + why
		}
		f.Detail = fmt.Sprintf("No engine for model '%s' is reachable (%d known, last seen %s ago%s).", model, len(known), refuse.Seconds(age), why)
	} else if why != "" {
		f.Detail = fmt.Sprintf("No engine for model '%s' takes work now (%d known, %s).", model, len(known), why)
	}
	return f
}

// serveModels answers GET /v1/models: every model with an engine that is not gone,
// once, with the smallest context any of its engines has.
func (g *Gateway) serveModels(w http.ResponseWriter, r *http.Request) {
	rules := g.policy.Load()
	if rules.Missing {
		g.refuseEarly(w, unread())
		return
	}
	tenant, ok := rules.Who(r.Header.Get("Authorization"))
	if !ok {
		g.refuseEarly(w, &refuse.Refusal{Reason: reason.NoKey})
		return
	}
	known, err := g.directory.read(r.Context(), directoryAge)
	if err != nil {
		g.warn("read directory", err)
		g.refuseEarly(w, &refuse.Refusal{Reason: reason.RecordStoreAway})
		return
	}
	type model struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		MaxModelLen int    `json:"max_model_len,omitempty"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{}}
	add := func(id string, engines []registry.Engine) {
		m := model{ID: id, Object: "model", Created: g.started.Unix(), OwnedBy: "penstock"}
		shown := false
		for i := range engines {
			if time.Since(engines[i].Seen) > engineGone {
				continue
			}
			shown = true
			if length := engines[i].MaxModelLen; m.MaxModelLen == 0 || length > 0 && length < m.MaxModelLen {
				m.MaxModelLen = length
			}
		}
		if shown {
			list.Data = append(list.Data, m)
		}
	}
	for id, engines := range known.byModel {
		if tenant.May(id) {
			add(id, engines)
		}
	}
	for id, targets := range rules.Aliases() {
		if known.byModel[id] != nil {
			continue
		}
		var engines []registry.Engine
		for _, t := range targets {
			if tenant.May(id, t.Model) {
				engines = append(engines, known.byModel[t.Model]...)
			}
		}
		add(id, engines)
	}
	slices.SortFunc(list.Data, func(a, b model) int { return cmp.Compare(a.ID, b.ID) })
	body, _ := json.Marshal(list) // plain values: cannot fail
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}
