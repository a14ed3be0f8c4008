package redis

import (
	"context"
	"fmt"
	"strings"
	"time"

	"penstock/redisconn"
	"penstock/registry/redis/script"
)

// pings is how often Inspect asks for a round trip; the best counts, since one slow
// one says more about this process than about the way to Redis.
const pings = 5

// Report is what a Redis says of itself.
type Report struct {
	Info      map[string]string // its INFO, by field, such as redis_version or maxmemory_policy
	RoundTrip time.Duration     // the best of five
	Ahead     time.Duration     // Redis's clock less ours; wrong by at most half of RoundTrip
	Scripts   error             // why it runs no scripts on our keys; nil if it does
	Snapshots string            // its "save" setting; "" = none, or it may not be asked
}

// Inspect asks the Redis of cfg about itself and writes nothing. ctx bounds it; an
// error says that Redis cannot be reached or does not answer INFO. The doctor calls
// it.
func Inspect(ctx context.Context, cfg Config) (Report, error) {
	options, err := cfg.options()
	if err != nil {
		return Report{}, err
	}
	sources, err := script.Sources(cfg.Mailbox, cfg.TotalBytes)
	if err != nil {
		return Report{}, err
	}
	client := new(redisconn.Link).Client(options)
	defer client.Close()
	text, err := client.Info(ctx).Result()
	if err != nil {
		return Report{}, fmt.Errorf("registry/redis: info: %w", err)
	}
	r := Report{Info: fields(text)}
	for range pings {
		from := time.Now()
		theirs, err := client.Time(ctx).Result()
		if err != nil {
			return r, fmt.Errorf("registry/redis: time: %w", err)
		}
		if took := time.Since(from); r.RoundTrip == 0 || took < r.RoundTrip {
			r.RoundTrip, r.Ahead = took, theirs.Sub(from.Add(took/2))
		}
	}
	r.Scripts = client.Eval(ctx, sources["clock"], nil, cfg.Prefix).Err()
	r.Snapshots = client.ConfigGet(ctx, "save").Val()["save"]
	return r, nil
}

// fields reads lines of "name:value".
func fields(info string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(name, "#") {
			found[name] = value
		}
	}
	return found
}
