package penstock

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allowed is the whole import table between our packages, without tests. A
// package that is missing here fails the test: say where it belongs.
var allowed = map[string][]string{
	".":               {},
	"reason":          {},
	"lane":            {},
	"queue":           {"lane"},
	"queue/memory":    {"queue", "lane"},
	"queue/queuetest": {"queue", "lane"},
	"queue/isolation": {"queue", "lane"},

	"redisconn":               {},
	"redisconn/redisconntest": {},

	"response":              {"reason"},
	"response/memory":       {"response"},
	"response/responsetest": {"response", "reason"},

	"quota":                 {},
	"registry":              {"lane", "quota", "reason"},
	"registry/door":         {"registry", "lane", "quota", "reason"},
	"registry/memory":       {"registry", "registry/door", "lane", "quota", "reason"},
	"registry/registrytest": {"registry", "lane", "quota", "reason"},
	"registry/redis":        {"redisconn", "registry", "registry/door", "registry/redis/script", "lane", "quota", "reason"},
	"registry/redis/script": {"registry", "lane", "quota"},
	"response/redis":        {"redisconn", "response"},
	"queue/rocketmq":        {"queue", "queue/rocketmq/proxy", "lane"},

	"queue/rocketmq/proxy":           {"queue"},
	"queue/rocketmq/proxy/proxytest": {},

	"policy": {
		"policy/apikey", "policy/document", "policy/glob", "policy/lanes", "policy/quotas", "lane", "quota", "reason", "scheduler",
	},
	"policy/source": {"policy", "policy/apikey"},

	"policy/apikey":                 {"policy/document"},
	"policy/document":               {},
	"policy/glob":                   {},
	"policy/lanes":                  {"policy/document", "policy/glob", "lane"},
	"policy/quotas":                 {"policy/document", "policy/glob", "quota"},
	"policy/source/redis":           {"policy", "policy/source", "redisconn"},
	"policy/source/nacos":           {"policy", "policy/source"},
	"policy/source/nacos/nacostest": {},
	"policy/source/sourcetest":      {"policy", "policy/source", "policy/apikey"},

	"cost":      {"lane"},
	"fleet":     {"reason"},
	"abort":     {},
	"gossip":    {},
	"scheduler": {"reason", "scheduler/forecast", "scheduler/order"},
	"scraper":   {"scheduler", "reason"},

	"scheduler/fair":     {},
	"scheduler/forecast": {},
	"scheduler/order":    {"reason", "scheduler/fair"},

	"scraper/nvml":      {"reason", "scraper/nvml/wire"},
	"scraper/nvml/wire": {},

	"sim":            {"scheduler", "sim/engine", "sim/gate", "sim/random", "sim/traces", "sim/world"},
	"sim/engine":     {},
	"sim/fit":        {},
	"sim/gate":       {"cost", "fleet", "lane", "reason", "registry/door", "scheduler", "sim/random", "sim/world"},
	"sim/random":     {},
	"sim/report":     {"sim"},
	"sim/traces":     {"sim/random"},
	"sim/world":      {"scheduler", "sim/engine", "sim/random", "sim/traces"},
	"vllm":           {"reason"},
	"vllm/simengine": {"sim/engine"},
	"vllm/vllmtest":  {"vllm/simengine", "sim/engine"},

	"proto/penstock/v1":      {},
	"docs/scheduler-example": {"proto/penstock/v1"},

	"admin": {},
	"agent": {
		"abort", "agent/attempt", "agent/engine", "agent/health", "agent/record", "agent/room", "agent/state",
		"fleet", "lane", "queue", "quota", "reason", "registry", "response", "scheduler", "scraper", "scraper/nvml", "vllm",
	},
	"agent/attempt": {"abort", "queue", "reason", "response", "vllm"},
	"agent/control": {"agent/health", "agent/state", "fleet", "lane", "proto/penstock/v1", "reason", "registry"},
	"agent/engine":  {"agent/attempt", "vllm"},
	"agent/health":  {"reason", "registry", "scraper", "vllm"},
	"agent/record":  {"agent/state", "quota", "registry", "response"},
	"agent/room":    {"agent/state", "lane", "reason", "scheduler"},
	"agent/state":   {"reason", "scheduler"},

	"gateway/openai":    {},
	"gateway/direct":    {"proto/penstock/v1"},
	"gateway/route":     {"lane", "policy", "reason"},
	"gateway/headers":   {"policy"},
	"gateway/inbox":     {"registry", "response"},
	"gateway/outcome":   {"gateway/refuse", "gateway/route", "policy", "reason", "registry"},
	"gateway/relay":     {"gateway/inbox", "response"},
	"gateway/journal":   {"reason"},
	"gateway/directory": {"fleet", "reason", "registry"},
	"gateway/refuse":    {"quota", "reason", "registry"},
	"gateway/admission": {
		"gateway/directory", "gateway/headers", "gateway/openai", "gateway/refuse", "cost", "fleet", "lane", "queue", "quota", "reason", "registry", "response",
	},

	"gateway": {
		"gateway/admission", "gateway/directory", "gateway/headers", "gateway/inbox", "gateway/journal", "gateway/openai", "gateway/outcome", "gateway/refuse", "gateway/relay", "gateway/route", "admin", "policy", "fleet", "lane", "queue", "quota", "reason", "registry", "response",
	},
	"systemd":      {},
	"config":       {"agent", "gateway", "admin", "policy", "policy/document", "scheduler", "scraper", "vllm"},
	"load":         {},
	"doctor":       {"queue/rocketmq/proxy", "redisconn", "registry/redis", "scraper", "vllm"},
	"cmd/penstock": {"*"},

	"cmd/penstock/classify": {"cmd/penstock/exit", "cmd/penstock/show", "cost", "gateway/headers", "gateway/openai", "policy", "policy/lanes", "quota", "reason", "v1"},
	"cmd/penstock/demo":     {"cmd/penstock/flags", "cmd/penstock/show", "cmd/penstock/stack", "gateway", "load", "policy/apikey", "quota", "scheduler", "sim/engine", "v1", "vllm/simengine"},
	"cmd/penstock/exit":     {},
	"cmd/penstock/flags": {
		"cmd/penstock/exit", "cmd/penstock/reload", "agent/control", "config", "gateway", "gateway/direct", "policy", "policy/apikey",
		"policy/source/nacos", "policy/source/redis", "queue/rocketmq", "registry/redis", "response", "response/redis", "scheduler",
	},
	"cmd/penstock/neighbours": {"cmd/penstock/exit", "abort", "fleet", "gossip"},
	"cmd/penstock/reload":     {"cmd/penstock/exit", "cmd/penstock/show"},
	"cmd/penstock/show":       {"cmd/penstock/exit"},
	"cmd/penstock/stack": { // the one place where adapters meet
		"cmd/penstock/exit", "cmd/penstock/flags", "cmd/penstock/neighbours", "cmd/penstock/reload",
		"admin", "agent", "agent/control", "agent/health", "fleet", "gateway", "gateway/direct", "lane", "policy", "policy/source", "policy/source/nacos", "policy/source/redis",
		"queue/memory", "queue/rocketmq", "reason", "registry", "registry/memory", "registry/redis", "response", "response/memory", "response/redis", "sim/engine", "systemd", "v1", "vllm/simengine",
	},
	"cmd/penstock/status": {"cmd/penstock/exit", "cmd/penstock/show", "fleet", "proto/penstock/v1"},

	"cmd/penstock-nvml": {"scraper/nvml/wire"},
}

// pure packages are functions of values: no clock, IO, log or metric.
var pure = map[string]bool{"scheduler": true, "scheduler/fair": true, "scheduler/forecast": true, "scheduler/order": true, "quota": true, "fleet": true, "cost": true, "policy": true, "policy/apikey": true, "policy/glob": true, "policy/lanes": true, "policy/quotas": true, "lane": true, "reason": true, "sim/engine": true, "registry/door": true, "gateway/route": true}

var impure = []string{"os", "net", "net/http", "log", "log/slog", "context", "math/rand", "math/rand/v2", "sync", "github.com/prometheus"}

func TestLayout(t *testing.T) {
	for dir, imports := range packages(t) {
		allow, known := allowed[dir]
		if !known {
			t.Errorf("package %s is not in the layout table: add it to layout_test.go with what it may import", dir)
			continue
		}
		for _, path := range imports {
			ours, isOurs := strings.CutPrefix(path, "penstock/")
			if isOurs && !slices.Contains(allow, ours) && !slices.Contains(allow, "*") {
				t.Errorf("%s imports penstock/%s; it may import %v", dir, ours, allow)
			}
			if !isOurs && pure[dir] && slices.ContainsFunc(impure, func(bad string) bool {
				return path == bad || strings.HasPrefix(path, bad+"/") && strings.Contains(bad, ".")
			}) {
				t.Errorf("%s imports %s; it is a function of values", dir, path)
			}
		}
	}
}

func TestNoDrawers(t *testing.T) {
	for dir := range packages(t) {
		for _, name := range strings.Split(dir, "/") {
			if slices.Contains([]string{"util", "utils", "common", "helpers", "helper", "types", "manager", "pkg", "internal", "mocks"}, name) {
				t.Errorf("%s: a package is named after what it owns", dir)
			}
		}
	}
}

// packages maps each directory with non-test Go files to its imports.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "e2e") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		found[dir] = append(found[dir], []string{}...)
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(found[dir], name) {
				found[dir] = append(found[dir], name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 5 {
		t.Fatalf("found %d packages, want the whole tree", len(found))
	}
	return found
}
