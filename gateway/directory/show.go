package directory

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"penstock/reason"
	"penstock/registry"
)

// Model is what the door knows of one model.
type Model struct {
	Model      string  `json:"model"`
	Engines    int     `json:"engines"` // known
	Live       int     `json:"live"`    // of them, by the directory
	Rate       float64 `json:"drain_tokens_per_second"`
	RateAge    float64 `json:"drain_age_seconds"` // -1 = no rate was ever known; above 30 it is not used
	FirstToken float64 `json:"first_token_seconds"`
}

// Models lists what the door knows of each model, by name.
func (d *Directory) Models(known *Reading, now time.Time) []Model {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Model, 0, len(known.ByModel))
	for _, name := range slices.Sorted(maps.Keys(known.ByModel)) {
		m := Model{Model: name, Engines: len(known.ByModel[name]), RateAge: -1}
		for i := range known.ByModel[name] {
			if Live(&known.ByModel[name][i], now) {
				m.Live++
			}
		}
		if r, ok := d.rates[name]; ok {
			m.Rate, m.RateAge, m.FirstToken = r.tokens, now.Sub(r.at).Seconds(), r.firstToken.Seconds()
		}
		out = append(out, m)
	}
	return out
}

// Engine is what is known of one engine: its entry in the directory and its row.
type Engine struct {
	Node        string        `json:"node"`
	Models      []string      `json:"models"`
	Pool        string        `json:"pool,omitempty"`
	MaxModelLen int           `json:"max_model_len,omitempty"`
	State       reason.Reason `json:"state"`
	Cause       string        `json:"cause,omitempty"`
	Seen        float64       `json:"seen_seconds"` // since its entry was renewed; above 10 it counts as gone; -1 = it has none
	Row         *Row          `json:"row,omitempty"`
}

// Row is an engine's fleet.Row.
type Row struct {
	State      reason.Reason `json:"state"`
	Age        float64       `json:"age_seconds"` // above 1 it does not count
	Running    int           `json:"running"`
	Waiting    int           `json:"waiting"`
	KV         float64       `json:"kv_usage_ratio"`
	Freeness   int           `json:"free_tokens"`
	DrainRate  float64       `json:"drain_tokens_per_second"`
	FirstToken float64       `json:"first_token_seconds"`
}

// Engines lists what is known of each engine, by name.
func (d *Directory) Engines(known *Reading, now time.Time) []Engine {
	rows := d.Rows("")
	out := make([]Engine, 0, len(known.Engines))
	for i := range known.Engines {
		e := &known.Engines[i]
		out = append(out, Engine{
			Node: e.Node, Models: e.Models, Pool: e.Pool, MaxModelLen: e.MaxModelLen, State: e.State, Cause: d.Cause(e, now),
			Seen: now.Sub(e.Seen).Seconds(),
		})
	}
	for i := range rows {
		r := &rows[i]
		at := slices.IndexFunc(out, func(e Engine) bool { return e.Node == r.Node })
		if at < 0 {
			at = len(out)
			out = append(out, Engine{Node: r.Node, Pool: r.Pool, State: r.State, Seen: -1})
		}
		out[at].Row = &Row{
			State: r.State, Age: now.Sub(r.At).Seconds(), Running: r.Running, Waiting: r.Waiting, KV: r.KV,
			Freeness: r.Freeness, DrainRate: r.DrainRate, FirstToken: r.FirstToken.Seconds(),
		}
	}
	slices.SortFunc(out, func(a, b Engine) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Cause is why an engine takes no work, or took none when it was last heard of; "" =
// it takes some, as far as is known.
func (d *Directory) Cause(e *registry.Engine, now time.Time) string {
	if d.why != nil {
		if why := d.why(e.Node); why != "" {
			return why
		}
	}
	if now.Sub(e.Seen) > Gone {
		now = e.Seen
	}
	return e.Why(now)
}
