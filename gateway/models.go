package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"penstock/gateway/directory"
	"penstock/gateway/refuse"
	"penstock/reason"
	"penstock/registry"
)

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
