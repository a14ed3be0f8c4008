//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// calm waits until all parts are ready and nothing is left of earlier requests.
func (f *fleet) calm(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	return eventually(t, within, func() string {
		for _, p := range f.withProbes() {
			if ok, why := p.ready(); !ok {
				return p.name + " is not ready: " + why
			}
		}
		return f.unrest()
	})
}

// rest is calm, and every record is over and nothing is left at the broker. It says so
// in the log.
func (f *fleet) rest(t *testing.T, within time.Duration) {
	t.Helper()
	began, left := time.Now(), 0
	f.calm(t, within)
	eventually(t, within, func() (missing string) {
		if left, missing = f.records(); missing != "" {
			return missing
		}
		return lag()
	})
	t.Logf("at rest after %v: every agent and engine holds nothing, Redis counts nothing, every record is over, the broker's lanes are empty", time.Since(began).Round(time.Millisecond))
	if left > 0 {
		t.Logf("%d records were past their deadline with nobody to end them: their gateway died, or could not reach Redis, before it had sent them", left)
	}
}

// records names a record that can still run; left is how many can not and are not
// finished.
func (f *fleet) records() (left int, missing string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	const finished = "4"
	keys := f.redis.Scan(ctx, 0, "penstock:r:*", 1000).Iterator()
	for keys.Next(ctx) {
		v, err := f.redis.HMGet(ctx, keys.Val(), "state", "deadline", "owned").Result()
		if err != nil {
			return 0, err.Error()
		}
		if v[0] == nil || v[0] == finished { // nil: expired meanwhile
			continue
		}
		for _, until := range v[1:] {
			ms, err := strconv.ParseFloat(fmt.Sprint(until), 64)
			if err != nil || time.UnixMilli(int64(ms)).After(time.Now()) {
				return 0, fmt.Sprintf("record %s is in state %v until %v", keys.Val(), v[0], until)
			}
		}
		left++
	}
	if err := keys.Err(); err != nil {
		return 0, err.Error()
	}
	return left, ""
}

// unrest names what is not as in an idle fleet: ledgers, engines, records, counts.
func (f *fleet) unrest() string {
	check := func(p *part, name string, labels ...string) string {
		if v, err := p.metric(name, labels...); err != nil {
			return err.Error()
		} else if v != 0 {
			return fmt.Sprintf("%s: %s%v is %g", p.name, name, labels, v)
		}
		return ""
	}
	var found []string
	for _, e := range f.engines {
		found = append(found, check(e, "vllm:num_requests_running"), check(e, "vllm:num_requests_waiting"), check(e, "vllm:kv_cache_usage_perc"))
	}
	for _, a := range f.agents {
		found = append(found, check(a, "penstock_inflight_requests"), check(a, "penstock_inflight_tokens"), check(a, "penstock_room_requests"),
			check(a, "penstock_engine_credit_tokens"), check(a, "penstock_lane_permits", `state="used"`), check(a, "penstock_lane_backlog_requests"))
	}
	for _, g := range f.gateways {
		found = append(found, check(g, "penstock_open_requests"))
	}
	for _, one := range found {
		if one != "" {
			return one
		}
	}
	return f.storeUnrest()
}

// counts are the fields of a lane or model that must be gone with its last request.
var counts = regexp.MustCompile(`^([nbqt]\d*|.*:[oqtbl])$`)

func (f *fleet) storeUnrest() string {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	keys := f.redis.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		if ttl, err := f.redis.PTTL(ctx, key).Result(); err != nil {
			return err.Error()
		} else if ttl == -1 {
			return "Redis key " + key + " does not expire"
		}
		switch name := strings.TrimPrefix(key, "penstock:"); {
		case name == "out", name == "bytes", strings.HasPrefix(name, "wait:"):
			return "Redis key " + key + " is there: " + strings.Join(f.redis.ZRange(ctx, key, 0, 2).Val(), ", ")
		case strings.HasPrefix(name, "lane:"), strings.HasPrefix(name, "model:"):
			fields, err := f.redis.HGetAll(ctx, key).Result()
			if err != nil {
				return err.Error()
			}
			for field, v := range fields {
				if counts.MatchString(field) && !(strings.HasPrefix(name, "model:") && !strings.Contains(field, ":")) {
					return fmt.Sprintf("Redis key %s counts %s = %s", key, field, v)
				}
			}
		}
	}
	if err := keys.Err(); err != nil {
		return err.Error()
	}
	return ""
}

var lagCount = regexp.MustCompile(`Total Lag Count: (\d+)`)

// lag names messages at the broker that nobody has acknowledged.
func lag() string {
	out, err := script("getLiteGroupInfo -n 127.0.0.1:"+port(0)+" -p penstock -g penstock-agents -k 3\n", "scripts/rocketmq/rocketmq.sh", "admin")
	if err != nil {
		return err.Error()
	}
	if n := lagCount.FindStringSubmatch(out); n == nil || n[1] != "0" {
		return "the broker has messages that are not acknowledged: " + out
	}
	return ""
}
