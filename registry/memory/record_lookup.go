package memory

import (
	"context"

	"penstock/registry"
)

// Lookup reads one record; it changes nothing.
func (r *Registry) Lookup(_ context.Context, id string) (registry.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.records[id]
	if rec == nil {
		return registry.Record{}, nil
	}
	return registry.Record{
		State: rec.state, Tier: rec.lane.Tier, Model: rec.lane.Model, Owner: rec.owner, Attempt: rec.attempt,
		Tries: rec.tries, Canceled: rec.canceled, Opened: rec.opened, Deadline: rec.deadline,
	}, nil
}
