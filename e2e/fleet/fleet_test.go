//go:build e2e

// Package fleet runs the distributed form as real processes on one machine: RocketMQ,
// Redis, two gateways, three agents and their simulated engines, which it starts,
// freezes and kills. scripts/e2e runs its short form, scripts/chaos the full one
// (-full); both set E2E_BINARY and E2E_CACHE. What is missing is a failure, not a skip.
package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

var (
	binary, cache string
	home          string // logs and broker of these tests
	full          = flag.Bool("full", false, "the full form: more kill points, longer streams")
	points        = flag.Int("points", 2, "kill points of each component")
	seed          = flag.Uint64("seed", 1, "of kill points and load")
	older         = flag.String("old", "", "an earlier build of penstock: TestRollingRestart begins with it")
	firstPort     = flag.Int("port", 23000, "first of 100 ports on 127.0.0.1")
)

func port(i int) string { return strconv.Itoa(*firstPort + i) }

func addr(i int) string { return "127.0.0.1:" + port(i) }

// tenants have an API key each; fresh takes the ones no test has used.
const tenants = 400

func key(tenant int) string { return fmt.Sprintf("key-of-tenant-%04d", tenant) }

var hostile = []string{`"\0\0"`, `"../../etc/passwd"`, `"a b%\n*"`, `"` + strings.Repeat("x", 256) + `"`, `"\u00e9"`, `"e\u0301"`}

// models of the fleet: alpha has two fast engines, beta one whose tokens take 100 ms.
const alpha, beta = "alpha", "beta"

// slowToken is what one of beta takes.
const slowToken = 100 * time.Millisecond

type fleet struct {
	reference                 *part // says what the engines must answer
	engines, agents, gateways []*part
	redis                     *goredis.Client
	outset                    outset

	mu       sync.Mutex
	tenant   int // the next one nobody has used
	answered int // whole answers that clients got
}

// outset is what the parts said and did while broker and Redis were away at first.
type outset struct {
	why     map[string]string // of /readyz
	refused *reply
	up      map[string]time.Duration // ready so long after broker and Redis
}

var (
	theFleet = sync.OnceValues(startFleet)
	begun    *fleet // what TestMain has to end; nil = no test ran
)

// the returns the one fleet of all tests, up and at rest.
func the(t *testing.T) *fleet {
	t.Helper()
	f, err := theFleet()
	if err != nil {
		t.Fatal(err)
	}
	f.calm(t, 60*time.Second)
	return f
}

func TestMain(m *testing.M) {
	flag.Parse()
	for name, value := range map[string]*string{"E2E_BINARY": &binary, "E2E_CACHE": &cache} {
		if *value = os.Getenv(name); *value == "" {
			fmt.Fprintf(os.Stderr, "e2e: %s is not set; run scripts/e2e\n", name)
			os.Exit(1)
		}
	}
	home = filepath.Join(cache, "fleet")
	if err := os.MkdirAll(home, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	code := m.Run()
	if begun != nil {
		if err := begun.close(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func newFleet() (*fleet, error) {
	f := &fleet{redis: goredis.NewClient(&goredis.Options{Addr: addr(10), Protocol: 2})}
	keys := new(strings.Builder)
	for i := range tenants {
		fmt.Fprintf(keys, "tenant-%d: %s\n", i, key(i))
	}
	for i, name := range hostile {
		fmt.Fprintf(keys, "%s: hostile-%d\n", name, i)
	}
	keyFile := filepath.Join(home, "keys.yaml")
	if err := errors.Join(os.WriteFile(keyFile, []byte(keys.String()), 0o600), writePolicy(plainPolicy)); err != nil {
		return nil, err
	}
	newPart := func(name string, args ...string) *part {
		p := &part{name: name, log: filepath.Join(home, name+".log"), args: args}
		_ = os.Remove(p.log)
		return p
	}
	engine := func(name, model, step string, listen int) *part {
		p := newPart(name, "sim", "engine", "--listen", addr(listen), "--model", model, "--step", step, "--seed", "7")
		p.url = "http://" + addr(listen)
		return p
	}
	f.reference = engine("reference", "reference", "100us", 11)
	for i, model := range []string{alpha, alpha, beta} {
		step := map[string]string{alpha: "10ms", beta: slowToken.String()}[model]
		e := engine(fmt.Sprintf("engine%d", i), model, step, 12+i)
		a := newPart(fmt.Sprintf("node%d", i), "agent", "--node", fmt.Sprintf("node%d", i), "--engine", e.url, "--rocketmq", addr(5), "--redis", addr(10),
			"--grpc", addr(20+5*i), "--admin", addr(21+5*i), "--metrics", addr(22+5*i), "--gossip", addr(23+5*i), "--join", addr(23), "--policy", policyFile())
		a.admin = "http://" + addr(21+5*i)
		f.engines, f.agents = append(f.engines, e), append(f.agents, a)
	}
	for i := range 2 {
		g := newPart(fmt.Sprintf("gateway%d", i), "gateway", "--listen", addr(40+5*i), "--rocketmq", addr(5), "--redis", addr(10), "--api-keys", keyFile,
			"--admin", addr(41+5*i), "--metrics", addr(42+5*i), "--gossip", addr(43+5*i), "--join", addr(23), "--policy", policyFile())
		g.url, g.admin = "http://"+addr(40+5*i), "http://"+addr(41+5*i)
		f.gateways = append(f.gateways, g)
	}
	return f, nil
}

// startFleet starts the parts first and only then broker and Redis.
func startFleet() (*fleet, error) {
	f, err := newFleet()
	if err != nil {
		return nil, err
	}
	begun = f
	if err := sweep(); err != nil {
		return f, err
	}
	for _, p := range f.parts() {
		if err := p.start(); err != nil {
			return f, err
		}
	}
	f.lookAround()
	redis := make(chan error, 1)
	go func() { _, err := script("", "scripts/redis", "start"); redis <- err }()
	_, err = stack("start")
	if err := <-redis; err != nil {
		return f, err
	}
	if err != nil {
		return f, err
	}
	return f, f.awaitReady()
}

// lookAround notes what is said while nothing else is there.
func (f *fleet) lookAround() {
	f.outset.why = map[string]string{}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		all := true
		for _, p := range f.withProbes() {
			ok, why := p.ready()
			f.outset.why[p.name] = fmt.Sprint(ok, " ", why)
			all = all && strings.Contains(why, "redis") && strings.Contains(why, "rocketmq")
		}
		if all {
			break
		}
	}
	f.outset.refused = send(context.Background(), f.gateways[0], ask{model: alpha, prompt: "too early", tokens: 1, key: key(0)}, nil)
}

func (f *fleet) awaitReady() error {
	began := time.Now()
	f.outset.up = map[string]time.Duration{}
	for len(f.outset.up) < len(f.withProbes()) {
		for _, p := range f.withProbes() {
			if _, seen := f.outset.up[p.name]; seen {
				continue
			}
			ok, why := p.ready()
			if ok {
				f.outset.up[p.name] = time.Since(began)
			} else if time.Since(began) > 60*time.Second {
				return fmt.Errorf("%s is not ready 60 s after broker and Redis: %s", p.name, why)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (f *fleet) withProbes() []*part { return append(append([]*part{}, f.gateways...), f.agents...) }

func (f *fleet) parts() []*part {
	return append(append([]*part{f.reference}, f.engines...), f.withProbes()...)
}

// fresh returns the API key of a tenant that no request was for.
func (f *fleet) fresh() string { return key(f.freshTenant()) }

func (f *fleet) freshTenant() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenant++
	return tenants - f.tenant
}

// close ends everything, and says what ran. A fleet no request went through is an error.
func (f *fleet) close() error {
	published := 0.0
	for _, g := range f.gateways {
		n, _ := g.metric("penstock_broker_publish_seconds_count", `outcome="sent"`)
		published += n
	}
	jars, _ := filepath.Glob(filepath.Join(cache, "rocketmq", "jars", "lib*", "rocketmq-[bp]ro*-[0-9]*.jar"))
	for i := range jars {
		jars[i] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jars[i]), "rocketmq-"), ".jar")
	}
	broker, _ := rocketmqPid("broker")
	proxy, _ := rocketmqPid("proxy")
	redis, _ := redisPid()
	version := ""
	info, _ := f.redis.Info(context.Background(), "server").Result()
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			version = v
		}
	}
	fmt.Printf("component: RocketMQ %s broker pid %d, proxy pid %d, messages of the last gateways: %.0f\n", strings.Join(jars, " "), broker, proxy, published)
	fmt.Printf("component: Redis %s pid %d, whole answers through it: %d\n", version, redis, f.answered)
	for _, p := range f.parts() {
		fmt.Printf("component: %s pid %d, processes so far %d\n", p.name, p.pid(), (p.turn()+1)/2)
	}
	var bad []string
	for _, p := range f.parts() {
		_ = p.signal(syscall.SIGCONT)
		if err := p.end(syscall.SIGKILL, 10*time.Second); err != nil {
			bad = append(bad, err.Error())
		}
	}
	for _, stop := range [][]string{{"scripts/rocketmq/rocketmq.sh", "stop"}, {"scripts/redis", "stop"}} {
		if _, err := script("", stop[0], stop[1:]...); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if f.answered == 0 || published == 0 || broker == 0 || redis == 0 {
		bad = append(bad, "no request went through the fleet")
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "; "))
	}
	return nil
}

// eventually polls until holds says "" or the time is over.
func eventually(t *testing.T, within time.Duration, holds func() string) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		missing := holds()
		if missing == "" {
			return time.Since(began)
		}
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, missing)
		}
	}
}
