package doctor

import (
	"context"
	"errors"
	"maps"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/queue/rocketmq/proxy"
	"penstock/registry/redis"
	"penstock/scraper"
	"penstock/vllm"
)

var config = Config{
	RocketMQ: "broker:8081", Topic: "penstock", Group: "penstock-agents", Redis: "redis:6379", Engine: "http://gpu:8000",
	Ports: []Port{{"--grpc", "127.0.0.1:4781"}},
}

const groupFix = "mqadmin updateSubGroup -c DefaultCluster -g penstock-agents -o true -r 10000 --attributes +lite.bind.topic=penstock,+lite.sub.client.max.event.cnt=1000000,+lite.sub.client.quota=10000"

// world is what well's probes see.
type world struct {
	broker proxy.Report
	redis  redis.Report
	page   scraper.Report
	models []vllm.Model
	files  uint64
	drift  time.Duration
	port   Listener
	away   map[string]bool // addresses that refuse

	brokerErr, redisErr, modelsErr, versionErr, pageErr, portErr error
}

func well() *world {
	answered := proxy.Answer{Code: "OK"}
	return &world{
		broker: proxy.Report{
			Route: answered, Types: []string{"LITE"}, Queues: 1, Brokers: []string{"broker-a"}, Addresses: []string{"broker:8081"},
			Group: answered, Ordered: true, Batch: 1, Attempts: 10_001, Quota: 10_000, Bind: answered,
		},
		redis: redis.Report{RoundTrip: 300 * time.Microsecond, Info: map[string]string{
			"redis_version": "7.0.15", "redis_mode": "standalone", "role": "master", "cluster_enabled": "0", "maxmemory_policy": "noeviction",
			"maxmemory": "268435456", "used_memory": "1048576", "aof_enabled": "1", "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok", "loading": "0",
		}},
		page:   scraper.Report{Found: []string{"vllm:num_requests_running"}, Ranks: 1, KVTokens: 2048, Bytes: 50_000, Filtered: 3000},
		models: []vllm.Model{{ID: "llama", MaxModelLen: 8192}},
		files:  1 << 20,
		away:   map[string]bool{},
	}
}

func (w *world) probes() Probes {
	return Probes{
		Dial: func(_ context.Context, address string) error {
			if w.away[address] {
				return errors.New("connection refused")
			}
			return nil
		},
		RocketMQ:  func(context.Context) (proxy.Report, error) { return w.broker, w.brokerErr },
		Redis:     func(context.Context) (redis.Report, error) { return w.redis, w.redisErr },
		Models:    func(context.Context) ([]vllm.Model, error) { return w.models, w.modelsErr },
		Version:   func(context.Context) (string, error) { return "0.32.0", w.versionErr },
		Page:      func(context.Context) (scraper.Report, error) { return w.page, w.pageErr },
		OpenFiles: func() (uint64, error) { return w.files, nil },
		Drift:     func(context.Context) time.Duration { return w.drift },
		Listen:    func(context.Context, string) (Listener, error) { return w.port, w.portErr },
	}
}

// TestWell: where all is well only the two things warn that cannot be seen.
func TestWell(t *testing.T) {
	got := map[string]Status{}
	for _, c := range Run(t.Context(), config, well().probes()) {
		if c.Status != OK {
			got[c.Group+"/"+c.Name] = c.Status
		}
		if c.Evidence == "" || (c.Fix == "") != (c.Status == OK) {
			t.Errorf("%s/%s is %s with evidence %q and fix %q", c.Group, c.Name, c.Status, c.Evidence, c.Fix)
		}
	}
	if diff := cmp.Diff(map[string]Status{"RocketMQ/topic TTL": Warn, "RocketMQ/group events": Warn}, got); diff != "" {
		t.Errorf("not ok (-want +got):\n%s", diff)
	}
}

// TestChecks: each thing that is wrong makes its own line, and no other.
func TestChecks(t *testing.T) {
	tests := []struct {
		name    string
		make    func(*world)
		check   string
		status  Status
		saw     string // in the evidence
		fix     string // in the fix
		without string // a check that cannot be made then
	}{
		{"proxy away", func(w *world) { w.away["broker:8081"] = true }, "RocketMQ/proxy", Fail, "refused", "--rocketmq", "RocketMQ/topic"},
		{"no gRPC in plain text", func(w *world) {
			w.broker = proxy.Report{Route: proxy.Answer{Text: "error reading server preface: EOF"}}
		}, "RocketMQ/proxy", Fail, "server preface", "if it speaks TLS, --rocketmq-ca-file", "RocketMQ/group"},
		{"another issuer", func(w *world) {
			w.broker = proxy.Report{Route: proxy.Answer{Text: "tls: failed to verify certificate: x509: certificate signed by unknown authority"}}
		}, "RocketMQ/proxy", Fail, "x509", "issuer of the proxy's certificate with --rocketmq-ca-file", "RocketMQ/group"},
		{"no TLS", func(w *world) {
			w.broker = proxy.Report{Route: proxy.Answer{Text: "tls: first record does not look like a TLS handshake"}}
		}, "RocketMQ/proxy", Fail, "first record", "leave --rocketmq-ca-file out", "RocketMQ/group"},
		{"silent", func(w *world) { w.broker = proxy.Report{Route: proxy.Answer{Text: "no answer"}} }, "RocketMQ/proxy", Fail, "no answer", "gRPC port", "RocketMQ/group"},
		{"no rights", func(w *world) {
			w.broker = proxy.Report{Route: proxy.Answer{Code: "UNAUTHORIZED", Text: "User:a has no permission to access Topic:penstock"}}
		}, "RocketMQ/proxy", Fail, "no permission", "mqadmin createAcl", "RocketMQ/group"},
		{"no right to the group", func(w *world) {
			w.broker.Group = proxy.Answer{Code: "UNAUTHORIZED", Text: "User:a has no permission to access Group:penstock-agents"}
		}, "RocketMQ/group", Fail, "no permission", "Sub on topic and group for an agent", "RocketMQ/batch"},
		{"bad credentials", func(w *world) { w.broker = proxy.Report{Route: proxy.Answer{Code: "UNAUTHORIZED"}} }, "RocketMQ/proxy", Fail, "UNAUTHORIZED", "--rocketmq-credentials-file", "RocketMQ/group"},
		{"no topic", func(w *world) {
			w.broker = proxy.Report{Route: proxy.Answer{Code: "TOPIC_NOT_FOUND", Text: "CODE: 17\nsee"}}
		}, "RocketMQ/topic", Fail, "TOPIC_NOT_FOUND: CODE: 17", "-t penstock -r 1 -w 1 -a +message.type=LITE,+lite.topic.expiration=60", "RocketMQ/group"},
		{"a normal topic", func(w *world) { w.broker.Types = []string{"NORMAL"} }, "RocketMQ/topic", Fail, "NORMAL", "+message.type=LITE", ""},
		{"eight queues", func(w *world) { w.broker.Queues = 8 }, "RocketMQ/topic queues", Warn, "8", "-r 1 -w 1", ""},
		{"sent elsewhere", func(w *world) {
			w.broker.Addresses = []string{"10.0.0.1:8081"}
			w.away["10.0.0.1:8081"] = true
		}, "RocketMQ/route", Fail, "not reachable: 10.0.0.1:8081", "useEndpointPortFromRequest", ""},
		{"no group", func(w *world) { w.broker.Group = proxy.Answer{Text: "group not found: penstock-agents"} }, "RocketMQ/group", Fail, "not found", groupFix, "RocketMQ/group order"},
		{"another's group", func(w *world) {
			w.broker.Group = proxy.Answer{Text: "lite group is expected to bind topic a, but actual is b"}
		}, "RocketMQ/group", Fail, "expected to bind", "another --group", "RocketMQ/batch"},
		{"wildcard group", func(w *world) {
			w.broker.Bind = proxy.Answer{Code: "INTERNAL_SERVER_ERROR", Text: "subscribe lite operation is not supported for this group"}
		}, "RocketMQ/lite binding", Fail, "lite.sub.wildcard", "-lite.sub.wildcard,+lite.bind.topic=penstock", ""},
		{"quota reached", func(w *world) { w.broker.Bind = proxy.Answer{Code: "LITE_SUBSCRIPTION_QUOTA_EXCEEDED"} }, "RocketMQ/lite binding", Fail, "QUOTA", groupFix, ""},
		{"local proxy", func(w *world) { w.broker.Bind = proxy.Answer{Code: "NOT_IMPLEMENTED"} }, "RocketMQ/lite binding", Fail, "NOT_IMPLEMENTED", "-pm cluster", ""},
		{"unordered", func(w *world) { w.broker.Ordered = false }, "RocketMQ/group order", Fail, "false", groupFix, ""},
		{"sixteen retries", func(w *world) { w.broker.Attempts = 17 }, "RocketMQ/group retries", Fail, "17", groupFix, ""},
		{"default quota", func(w *world) { w.broker.Quota = 2000 }, "RocketMQ/lane quota", Warn, "2000", groupFix, ""},
		{"batches", func(w *world) { w.broker.Batch = 32 }, "RocketMQ/batch", Warn, "32", "LongPollingBatchSize", ""},

		{"Redis away", func(w *world) { w.redisErr = errors.New("connection refused") }, "Redis/reachable", Fail, "refused", "--redis", "Redis/version"},
		{"Redis far", func(w *world) { w.redis.RoundTrip = 20 * time.Millisecond }, "Redis/reachable", Warn, "20ms", "nearer", ""},
		{"Redis too far", func(w *world) { w.redis.RoundTrip = 60 * time.Millisecond }, "Redis/reachable", Fail, "60ms", "50ms", ""},
		{"Redis 6", func(w *world) { w.redis.Info["redis_version"] = "6.2.7" }, "Redis/version", Fail, "6.2.7", "7 or newer", ""},
		{"no version", func(w *world) { delete(w.redis.Info, "redis_version") }, "Redis/version", Fail, "Redis", "7 or newer", ""},
		{"a replica", func(w *world) { w.redis.Info["role"] = "slave" }, "Redis/role", Fail, "slave", "primary", ""},
		{"a Sentinel", func(w *world) { w.redis.Info["redis_mode"] = "sentinel" }, "Redis/role", Fail, "sentinel", "primary", ""},
		{"cluster mode", func(w *world) { w.redis.Info["cluster_enabled"] = "1" }, "Redis/cluster", Fail, "1", "cluster-enabled no", ""},
		{"eviction", func(w *world) { w.redis.Info["maxmemory_policy"] = "allkeys-lru" }, "Redis/eviction", Fail, "allkeys-lru", "config set maxmemory-policy noeviction", ""},
		{"nearly full", func(w *world) { w.redis.Info["used_memory"] = "268000000" }, "Redis/memory", Warn, "255 of 256 MiB", "maxmemory", ""},
		{"no scripts", func(w *world) { w.redis.Scripts = errors.New("NOPERM") }, "Redis/scripts", Fail, "NOPERM", "+@scripting", ""},
		{"a wrong password", func(w *world) { w.redisErr = errors.New("registry/redis: info: WRONGPASS invalid") }, "Redis/reachable", Fail, "WRONGPASS", "--redis-password-file", "Redis/version"},
		{"another issuer of Redis", func(w *world) { w.redisErr = errors.New("x509: certificate signed by unknown authority") }, "Redis/reachable", Fail, "x509", "--redis-ca-file", "Redis/version"},
		{"a TLS port of Redis", func(w *world) { w.redisErr = errors.New("read: EOF") }, "Redis/reachable", Fail, "EOF", "rediss://", "Redis/version"},
		{"clocks apart", func(w *world) { w.redis.Ahead = -3 * time.Second }, "Redis/clock", Warn, "-3s", "chrony", ""},
		{"no persistence", func(w *world) { w.redis.Info["aof_enabled"] = "0" }, "Redis/persistence", Warn, "none", "appendonly yes", ""},
		{"snapshots", func(w *world) { w.redis.Info["aof_enabled"], w.redis.Snapshots = "0", "3600 1" }, "Redis/persistence", Warn, "3600 1", "appendonly yes", ""},
		{"a failed snapshot", func(w *world) {
			w.redis.Info["aof_enabled"], w.redis.Snapshots, w.redis.Info["rdb_last_bgsave_status"] = "0", "3600 1", "err"
		}, "Redis/persistence", Fail, "failed", "disk", ""},
		{"a full disk", func(w *world) { w.redis.Info["aof_last_write_status"] = "err" }, "Redis/persistence", Fail, "cannot be written", "disk", ""},
		{"loading", func(w *world) { w.redis.Info["loading"] = "1" }, "Redis/persistence", Fail, "loading", "wait", ""},

		{"engine away", func(w *world) { w.modelsErr = errors.New("connection refused") }, "Engine/reachable", Fail, "refused", "--engine", "Engine/metrics"},
		{"no model", func(w *world) { w.models = nil }, "Engine/reachable", Fail, "serves", "load a model", ""},
		{"a proxy before it", func(w *world) { w.versionErr = errors.New("404") }, "Engine/version", Warn, "404", "vLLM itself", ""},
		{"no log stats", func(w *world) {
			w.pageErr = &scraper.Error{Problem: scraper.Missing, Name: "vllm:kv_cache_usage_perc", Err: errors.New("not on the page")}
		}, "Engine/metrics", Fail, "vllm:kv_cache_usage_perc", "without --disable-log-stats", "Engine/metrics filter"},
		{"page too large", func(w *world) { w.pageErr = &scraper.Error{Problem: scraper.TooLarge, Err: errors.New("more")} }, "Engine/metrics", Fail, "too_large", "/metrics must answer", ""},
		{"names missing", func(w *world) { w.page.Missing, w.page.Renamed = []string{"vllm:x"}, []string{"vllm:old"} }, "Engine/metrics", Warn, "older names: vllm:old", "vllm:x", ""},
		{"no filter", func(w *world) { w.page.Filtered = 0 }, "Engine/metrics filter", Warn, "0", "name[]", ""},
		{"its own limits", func(w *world) { w.page.Refused = 7 }, "Engine/engine limits", Warn, "7", "--max-num-queued-reqs", ""},

		{"few files", func(w *world) { w.files = 20_000 }, "Host/open files", Warn, "20000", "LimitNOFILE", ""},
		{"hardly any files", func(w *world) { w.files = 256 }, "Host/open files", Fail, "256", "LimitNOFILE", ""},
		{"the clock jumps", func(w *world) { w.drift = -time.Second }, "Host/clock", Warn, "-1s", "chrony", ""},
		{"a port is taken", func(w *world) { w.port = Stranger }, "Host/port --grpc", Fail, "127.0.0.1:4781", "--grpc", ""},
		{"not our address", func(w *world) { w.portErr = errors.New("cannot assign requested address") }, "Host/port --grpc", Fail, "cannot assign", "--grpc", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := well()
			tt.make(w)
			found := map[string]Check{}
			for _, c := range Run(t.Context(), config, w.probes()) {
				found[c.Group+"/"+c.Name] = c
			}
			got := found[tt.check]
			if got.Status != tt.status || !strings.Contains(got.Evidence, tt.saw) || !strings.Contains(got.Fix, tt.fix) {
				t.Errorf("%s = %+v\nwant %s, evidence with %q, fix with %q", tt.check, got, tt.status, tt.saw, tt.fix)
			}
			if c, there := found[tt.without]; there {
				t.Errorf("%s is there: %+v", tt.without, c)
			}
			for _, also := range []string{tt.check, "RocketMQ/topic TTL", "RocketMQ/group events"} {
				delete(found, also)
			}
			maps.DeleteFunc(found, func(_ string, c Check) bool { return c.Status == OK })
			if len(found) > 0 {
				t.Errorf("more lines than its own: %v", found)
			}
		})
	}
}

// TestPorts: a port where penstock serves already is fine.
func TestPorts(t *testing.T) {
	if c := judgePort(config.Ports[0], Ours, nil); c.Status != OK || !strings.Contains(c.Evidence, "penstock serves there") {
		t.Errorf("check = %+v", c)
	}
}

// TestTime: with nothing that answers, the whole is over within 10 s, and no engine
// is looked at where none is named.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := well().probes()
		silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		p.RocketMQ = func(ctx context.Context) (proxy.Report, error) { return proxy.Report{}, silent(ctx) }
		p.Dial = func(ctx context.Context, _ string) error {
			return &net.OpError{Op: "dial", Net: "tcp", Err: silent(ctx)}
		}
		p.Redis = func(ctx context.Context) (redis.Report, error) { return redis.Report{}, silent(ctx) }
		p.Version = func(ctx context.Context) (string, error) { return "", silent(ctx) }
		p.Page = func(ctx context.Context) (scraper.Report, error) { return scraper.Report{}, silent(ctx) }
		p.Listen = func(ctx context.Context, _ string) (Listener, error) { return Free, silent(ctx) }
		from := time.Now()
		checks := Run(t.Context(), config, p)
		if took := time.Since(from); took > 9*time.Second {
			t.Errorf("took %v, want less than 10 s", took)
		}
		if n := Count(checks, Fail); n != 4 {
			t.Errorf("%d checks failed, want proxy, Redis, metrics page and port: %+v", n, checks)
		}
		cfg := config
		cfg.Engine = ""
		for _, c := range Run(t.Context(), cfg, p) {
			if c.Group == "Engine" {
				t.Errorf("no engine is named, yet %+v", c)
			}
		}
	})
}
