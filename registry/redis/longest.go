package redis

import (
	"context"

	"penstock/registry"
	"penstock/registry/redis/script"
)

// Longest is the n lanes, at most registry.MaxLongest, with most waiting in the whole
// fleet, and in how many lanes something waits.
func (r *Registry) Longest(ctx context.Context, n int) (longest []registry.LaneBacklog, waiting int, err error) {
	answer, err := r.run(ctx, "longest", 0, min(max(n, 1), registry.MaxLongest))
	row, err := script.Read(answer, err, 1)
	if err != nil {
		return nil, 0, err
	}
	const width = 6 // values of a lane
	for i := 1; i+width <= row.Len(); i += width {
		entry, err := script.ParseLane(row.Text(i))
		if err != nil {
			return nil, 0, err
		}
		l := registry.LaneBacklog{
			Lane: entry.Key, Requests: row.Int(i + 1), Tokens: row.Int(i + 2), Oldest: row.Millis(i + 3), Running: row.Int(i + 4), Width: r.bounds(entry.Key).Width,
		}
		l.Held = l.Running >= row.Int(i+5) // one request of a shard runs at a time
		longest = append(longest, l)
	}
	registry.SortLongest(longest)
	return longest, row.Int(0), row.Err()
}
