package memory

import (
	"context"
	"time"

	"penstock/lane"
	"penstock/registry"
)

// Longest is the n lanes, at most registry.MaxLongest, with most waiting, and in how
// many lanes something waits. It walks every record: for people. In memory a lane has
// no width: its next request is delivered once the one before has started.
func (r *Registry) Longest(_ context.Context, n int) (longest []registry.LaneBacklog, waiting int, err error) {
	now := time.Now()
	of := map[lane.Key]*registry.LaneBacklog{}
	r.mu.Lock()
	for _, rec := range r.live {
		if !rec.counted {
			continue
		}
		l := of[rec.lane]
		if l == nil {
			l = &registry.LaneBacklog{Lane: rec.lane}
			of[rec.lane] = l
		}
		if rec.state != registry.Queued {
			l.Running++
			continue
		}
		l.Requests++
		l.Tokens += rec.tokens
		l.Oldest = max(l.Oldest, now.Sub(rec.opened))
	}
	r.mu.Unlock()
	for _, l := range of {
		if l.Requests > 0 {
			longest = append(longest, *l)
		}
	}
	registry.SortLongest(longest)
	return longest[:min(max(n, 1), len(longest), registry.MaxLongest)], len(longest), nil
}
