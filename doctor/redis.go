package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"penstock/redisconn"
	"penstock/registry/redis"
)

const (
	// farAway is the round trip of which a call's deadline of 50 ms leaves little.
	farAway = 10 * time.Millisecond
	// redisDeadline is the deadline of one call.
	redisDeadline = 50 * time.Millisecond
	// offClock is where logs of two machines are hard to read side by side. Times
	// travel by Redis's clock, so nothing else depends on it.
	offClock = time.Second
)

func checkRedis(ctx context.Context, cfg Config, p Probes) []Check {
	r, err := ask(ctx, p.Redis)
	if err != nil {
		return []Check{fail("reachable", err, cmp.Or(redisconn.Fix(err), fmt.Sprintf("start Redis 7 or newer at %s, or set --redis; with a password --redis-password-file", cfg.Redis)))}
	}
	return judgeRedis(r)
}

func judgeRedis(r redis.Report) []Check {
	info := r.Info
	number := func(field string) int64 { n, _ := strconv.ParseInt(info[field], 10, 64); return n }
	major, _, _ := strings.Cut(info["redis_version"], ".")
	version, _ := strconv.Atoi(major)
	used, most := number("used_memory"), number("maxmemory")
	slow := Warn
	if r.RoundTrip >= redisDeadline {
		slow = Fail
	}
	checks := []Check{
		judge("reachable", r.RoundTrip < farAway, slow, fmt.Sprintf("round trip %v", rounded(r.RoundTrip)), fmt.Sprintf("bring Redis nearer: a call has %v in all", redisDeadline)),
		judge("version", version >= 7, Fail, "Redis "+info["redis_version"], "run Redis 7 or newer"),
		judge("role", info["role"] == "master" && info["redis_mode"] != "sentinel", Fail, fmt.Sprintf("%s, %s", info["role"], info["redis_mode"]), "give --redis the address of the primary, not of a replica or a Sentinel"),
		judge("cluster", info["cluster_enabled"] != "1" && info["redis_mode"] != "cluster", Fail, "cluster_enabled: "+info["cluster_enabled"], "cluster-enabled no: penstock's scripts use keys of one primary"),
		judge("eviction", info["maxmemory_policy"] == "noeviction", Fail, "maxmemory-policy "+info["maxmemory_policy"], "records must not vanish: redis-cli config set maxmemory-policy noeviction\nand in redis.conf: maxmemory-policy noeviction"),
		judge("memory", most == 0 || used < most/5*4, Warn, memory(used, most), "raise maxmemory in redis.conf: over it new requests are refused"),
		judge("scripts", r.Scripts == nil, Fail, scripts(r.Scripts), cmp.Or(redisconn.Fix(r.Scripts), "see Redis's log, and that scripts are not disabled")),
		judge("clock", r.Ahead.Abs() < offClock, Warn, fmt.Sprintf("Redis is %v ahead of this host; penstock counts by Redis's clock", rounded(r.Ahead)), "run an NTP client (chrony) on both: logs are hard to compare"),
	}
	return append(checks, judgePersistence(r))
}

func memory(used, most int64) string {
	if most == 0 {
		return fmt.Sprintf("%d MiB used, no maxmemory", used>>20)
	}
	return fmt.Sprintf("%d of %d MiB used", used>>20, most>>20)
}

func scripts(err error) string {
	if err != nil {
		return oneLine(err.Error())
	}
	return "the user may run them"
}

func judgePersistence(r redis.Report) Check {
	const name, fix = "persistence", "appendonly yes in redis.conf: without it a restart of Redis ends every answer that streams, and bounds and quotas begin anew"
	aof := r.Info["aof_enabled"] == "1"
	switch {
	case r.Info["loading"] == "1":
		return Check{Name: name, Status: Fail, Evidence: "Redis is loading its data", Fix: "wait for it"}
	case aof && r.Info["aof_last_write_status"] != "ok":
		return Check{Name: name, Status: Fail, Evidence: "the append-only file cannot be written", Fix: "look at Redis's log and disk: it refuses writes meanwhile"}
	case aof:
		return ok(name, "append-only file")
	case r.Snapshots != "" && r.Info["rdb_last_bgsave_status"] != "ok":
		return Check{Name: name, Status: Fail, Evidence: "the last snapshot failed", Fix: "look at Redis's log and disk: it refuses writes meanwhile"}
	case r.Snapshots != "":
		return Check{Name: name, Status: Warn, Evidence: "snapshots only (save " + r.Snapshots + ")", Fix: fix}
	}
	return Check{Name: name, Status: Warn, Evidence: "none is seen", Fix: fix}
}
