package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"penstock/fleet"
	"penstock/gateway/directory"
	"penstock/gateway/refuse"
	"penstock/reason"
	"penstock/registry"
)

// water refuses by the law "watermark".
func water(d *directory.Directory, model, pool, id string, now time.Time) *refuse.Refusal {
	w := fleet.Level(d.Rows(pool), model, now)
	if !w.Refuses(id, now) {
		return nil
	}
	f := &refuse.Refusal{Reason: reason.Overloaded, Model: model}
	if f.Detail = fmt.Sprintf("How full the engines for model '%s' are is not known.", model); w.Engines > 0 {
		f.Detail = fmt.Sprintf("The engines for model '%s' are full: %.0f %% of their KV cache, %s waiting in %s.", model, 100*w.KV, refuse.Count(w.Waiting, "request"), refuse.Count(w.Engines, "engine"))
	}
	return f
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
	why := g.directory.Cause(&newest, now)
	if age := now.Sub(newest.Seen); age > directory.Gone {
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
	known, err := g.directory.Read(r.Context(), directory.Fresh)
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
			if time.Since(engines[i].Seen) > directory.Gone {
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
	for id, engines := range known.ByModel {
		if tenant.May(id) {
			add(id, engines)
		}
	}
	for id, targets := range rules.Aliases() {
		if known.ByModel[id] != nil {
			continue
		}
		var engines []registry.Engine
		for _, t := range targets {
			if tenant.May(id, t.Model) {
				engines = append(engines, known.ByModel[t.Model]...)
			}
		}
		add(id, engines)
	}
	slices.SortFunc(list.Data, func(a, b model) int { return cmp.Compare(a.ID, b.ID) })
	body, _ := json.Marshal(list) // plain values: cannot fail
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}
