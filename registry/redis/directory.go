package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"penstock/reason"
	"penstock/registry"
	"penstock/registry/redis/script"
)

// engineEntry is an engine in the directory. State is the reason's name: names are
// stable, numbers are not. A reader ignores fields that it does not know, and an entry
// may lack those omitted when empty, so that a further one needs no new version.
type engineEntry struct {
	Version     int      `json:"v"`
	GRPC        string   `json:"grpc,omitempty"`
	Models      []string `json:"models"`
	MaxModelLen int      `json:"max_model_len,omitempty"`
	Pool        string   `json:"pool,omitempty"`
	State       string   `json:"state"`
	For         int64    `json:"for_ms,omitempty"` // it took no work for so long when this was written
	Cause       string   `json:"cause,omitempty"`
}

// PutEngine writes e's entry, seen now.
func (r *Registry) PutEngine(ctx context.Context, e registry.Engine) error {
	entry := engineEntry{Version: 1, GRPC: e.GRPC, Models: e.Models, MaxModelLen: e.MaxModelLen, Pool: e.Pool, State: e.State.String(), Cause: e.Cause}
	if !e.Since.IsZero() {
		entry.For = max(time.Since(e.Since).Milliseconds(), 1)
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("registry/redis: engine entry: %w", err)
	}
	_, err = r.run(ctx, "engines", 0, e.Node, text)
	return err
}

// Engines lists the entries by node name. One of an unknown format is left out.
func (r *Registry) Engines(ctx context.Context) ([]registry.Engine, error) {
	answer, err := r.run(ctx, "engines", 0)
	row, err := script.Read(answer, err, 0)
	if err != nil {
		return nil, err
	}
	list := make([]registry.Engine, 0, row.Len()/3)
	for i := 0; i+2 < row.Len(); i += 3 {
		var e engineEntry
		if err := json.Unmarshal([]byte(row.Text(i+1)), &e); err != nil || e.Version != 1 {
			r.log.Debug("engine entry skipped", "node", row.Text(i), "version", e.Version, "error", err)
			continue
		}
		engine := registry.Engine{
			Node: row.Text(i), GRPC: e.GRPC, Models: e.Models, MaxModelLen: e.MaxModelLen, Pool: e.Pool, Cause: e.Cause,
			State: cmp.Or(reasonOf(e.State), reason.Starting), Seen: time.UnixMilli(int64(row.Int(i + 2))).Add(-r.Offset()),
		}
		if e.For > 0 {
			engine.Since = engine.Seen.Add(-time.Duration(e.For) * time.Millisecond)
		}
		list = append(list, engine)
	}
	slices.SortFunc(list, func(a, b registry.Engine) int { return cmp.Compare(a.Node, b.Node) })
	return list, row.Err()
}

// Backlog is what waits and runs in the whole fleet, by model and tier; as last read
// where Redis does not answer. now is not needed: ages are by Redis's clock.
func (r *Registry) Backlog(time.Time) []registry.Backlog {
	list, err := r.readBacklog(context.Background())
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.backlog = list
	}
	return slices.Clone(r.backlog)
}

func (r *Registry) readBacklog(ctx context.Context) ([]registry.Backlog, error) {
	answer, err := r.run(ctx, "backlog", 0)
	row, err := script.Read(answer, err, 0)
	if err != nil {
		return nil, err
	}
	list := make([]registry.Backlog, 0, row.Len()/7)
	for i := 0; i+6 < row.Len(); i += 7 {
		list = append(list, registry.Backlog{
			Tier: row.Text(i), Model: row.Text(i + 1), Requests: row.Int(i + 2), Tokens: row.Int(i + 3),
			Bytes: int64(row.Int(i + 4)), Oldest: row.Millis(i + 5), Running: row.Int(i + 6),
		})
	}
	slices.SortFunc(list, func(a, b registry.Backlog) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tier, b.Tier))
	})
	return list, row.Err()
}
