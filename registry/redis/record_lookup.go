package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"penstock/registry"
	"penstock/registry/redis/script"
)

// lookupFields are those of a record's hash, see script/lua/base.lua.
var lookupFields = []string{"v", "state", "tier", "model", "owner", "attempt", "tries", "cancel", "opened", "deadline"}

// Lookup reads one record; it changes nothing. Times are by this host's clock.
func (r *Registry) Lookup(ctx context.Context, id string) (registry.Record, error) {
	answer, err := r.call(ctx, "lookup", 0, func(ctx context.Context) (any, error) {
		return r.client.HMGet(ctx, r.cfg.Prefix+"r:"+id, lookupFields...).Result()
	})
	if err != nil {
		return registry.Record{}, err
	}
	text := func(i int) string { s, _ := answer.([]any)[i].(string); return s }
	number := func(i int) int { n, _ := strconv.ParseFloat(text(i), 64); return int(n) }
	at := func(i int) time.Time { return time.UnixMilli(int64(number(i))).Add(-r.Offset()) }
	switch text(0) {
	case script.Version:
	case "":
		return registry.Record{}, nil
	default:
		return registry.Record{}, fmt.Errorf("registry/redis: record of format %s", text(0))
	}
	return registry.Record{
		State: registry.State(number(1)), Tier: text(2), Model: text(3), Owner: text(4), Attempt: text(5),
		Tries: number(6), Canceled: number(7) != 0, Opened: at(8), Deadline: at(9),
	}, nil
}
