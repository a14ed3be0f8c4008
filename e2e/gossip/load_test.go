//go:build e2e

package gossip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// startBackends starts broker and Redis on their host and waits until all nodes are ready.
func (f *fleet) startBackends(t *testing.T) *goredis.Client {
	t.Helper()
	dir := filepath.Join(home, "redis")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	redis := exec.Command("redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", dir, "--save", "", "--maxmemory-policy", "noeviction")
	if err := inside(backends, redis.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = redis.Process.Kill(); _ = redis.Wait() })
	rocketmq := func(command string) {
		cmd := exec.Command("../../scripts/rocketmq/rocketmq.sh", command)
		cmd.Env = append(os.Environ(), "ROCKETMQ_DIR="+filepath.Join(home, "rocketmq"))
		log, err := os.Create(filepath.Join(home, "rocketmq-"+command+".log")) // a pipe would stay open as long as the broker
		if err == nil {
			cmd.Stdout, cmd.Stderr = log, log
			defer func() { _ = log.Close() }()
			err = inside(backends, cmd.Start)
		}
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			t.Errorf("rocketmq %s: %v; see %s", command, err, log.Name())
		}
	}
	rocketmq("clean")
	rocketmq("start")
	t.Cleanup(func() { rocketmq("stop") })
	eventually(t, 60*time.Second, func() string {
		for _, n := range f.nodes() {
			body, err := n.get(n.admin + "/readyz")
			if err != nil {
				return err.Error()
			}
			_ = body.Close()
		}
		return ""
	})
	client := goredis.NewClient(&goredis.Options{Addr: address(backends) + ":6379", Protocol: 2})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// load is a steady stream of requests through both gateways.
type load struct {
	stop context.CancelFunc
	all  sync.WaitGroup

	mu  sync.Mutex // guards got
	got map[string]int
}

// start sends so many requests a second, which take about a third of a second each.
func (f *fleet) start(perSecond int) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, got: map[string]int{}}
	l.all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.all.Go(func() { l.note(f.gateways[i%2].ask(i)) })
			}
		}
	})
	return l
}

func (l *load) note(outcome string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got[outcome]++
}

// phase runs what happens for so long and says what clients got meanwhile.
func (l *load) phase(what func()) (got map[string]int, total, refused int) {
	l.mu.Lock()
	l.got = map[string]int{}
	l.mu.Unlock()
	what()
	l.mu.Lock()
	defer l.mu.Unlock()
	for outcome, n := range l.got {
		if total += n; outcome != "200" {
			refused += n
		}
	}
	return maps.Clone(l.got), total, refused
}

// ask is one request, answered whole or as a stream. It says the status and, where it is
// not 200 to the end, the error's code.
func (n *node) ask(i int) string {
	body := fmt.Sprintf(`{"model":"sim","max_tokens":24,"ignore_eos":true,"stream":%t,"messages":[{"role":"user","content":"number %d"}]}`, i%2 == 0, i)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:4780/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: n.http.Transport}
	resp, err := client.Do(req)
	if err != nil {
		return "no answer: " + err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "cut: " + err.Error()
	}
	if code := errorCode.FindSubmatch(text); code != nil {
		return fmt.Sprintf("%d %s", resp.StatusCode, code[1])
	}
	return fmt.Sprint(resp.StatusCode)
}

var errorCode = regexp.MustCompile(`"code":\s*"([^"]+)"`)

// TestRealLoad: the fleet with broker and Redis, and clients, while gossip is dead,
// split, flooded and has a wrong key, while an agent starves, and while one is killed
// again and again. The full form's.
func TestRealLoad(t *testing.T) {
	if !*full {
		t.Skip("the full form's: it needs a broker; scripts/e2e kills agents under load in e2e/fleet")
	}
	f := the(t)
	store := f.startBackends(t)
	l := f.start(15)
	defer func() { l.stop(); l.all.Wait() }()
	time.Sleep(5 * time.Second) // the first requests make lanes
	t.Run("faults", func(t *testing.T) { f.faultsUnderLoad(t, l) })
	t.Run("kills", func(t *testing.T) { f.killUnderLoad(t, l, store) })
}

// faultsUnderLoad: no fault of gossip costs a client its answer, and work goes to every
// engine all the same.
func (f *fleet) faultsUnderLoad(t *testing.T, l *load) {
	t.Helper()
	lasts := 20 * time.Second
	_, total, refused := l.phase(func() { time.Sleep(lasts) })
	base := 100 * float64(refused) / float64(total)
	t.Logf("calm: %d requests, %.1f %% without an answer", total, base)
	block := func(a, b []*node) {
		for _, n := range a {
			args := []any{"block", n.host}
			for _, other := range b {
				if other != n {
					args = append(args, other.host)
				}
			}
			fault(t, args...)
		}
	}
	left, right := []*node{f.agents[0], f.gateways[0]}, []*node{f.agents[1], f.agents[2], f.gateways[1]}
	keys := func(key string) {
		if err := f.agents[1].setKeys(key); err != nil {
			t.Fatal(err)
		}
	}
	var end func()
	for _, c := range []struct {
		name       string
		begin, end func()
	}{
		{"gossip dead", func() { block(f.nodes(), f.nodes()) }, func() { f.heal(t) }},
		{"partition", func() { block(left, right); block(right, left) }, func() { f.heal(t) }},
		{"wrong key at one agent", func() { keys(alien) }, func() { keys(first) }},
		{"flood", func() {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() { garbage(f.nodes(), stop); close(done) }()
			end = func() { close(stop); <-done }
		}, func() { end() }},
		{"an agent with 5 % of a core", func() { end = throttle(t, f.agents[2].pid(), 5*time.Millisecond); lasts = 30 * time.Second }, func() { end() }},
	} {
		c.begin()
		before := f.starts(t)
		got, total, refused := l.phase(func() { time.Sleep(lasts) })
		after := f.starts(t)
		c.end()
		share := 100 * float64(refused) / float64(total)
		back := f.whole(t, long(healed, 5*time.Second))
		ran := make([]float64, len(after))
		for i := range after {
			ran[i] = after[i] - before[i]
		}
		t.Logf("%s for %v: %v, %.1f %% without an answer (calm %.1f %%), started by each agent %v; the view is right %v after", c.name, lasts, got, share, base, ran, back.Round(time.Millisecond))
		if share > base+1 {
			t.Errorf("%s: %.1f %% without an answer, calm %.1f %%; at most 1 %% more", c.name, share, base)
		}
		if slices.Contains(ran[:2], 0) {
			t.Errorf("%s: an engine got nothing: %v", c.name, ran)
		}
		f.unharmed(t)
	}
}

// starts is how many requests each agent's engine has ended so far, aborted ones too.
func (f *fleet) starts(t *testing.T) (all []float64) {
	t.Helper()
	for _, a := range f.agents {
		v, err := a.metricAt(engine, "vllm:request_success_total")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// unharmed fails where an engine had to preempt or has a queue of its own.
func (f *fleet) unharmed(t *testing.T) {
	t.Helper()
	for _, a := range f.agents {
		for _, name := range []string{"vllm:num_preemptions_total", "vllm:num_requests_waiting"} {
			if v, err := a.metricAt(engine, name); err != nil || v != 0 {
				t.Errorf("%s's engine: %s is %v, %v", a.name, name, v, err)
			}
		}
	}
}

// killUnderLoad kills an agent a hundred times. What is counted is never negative, and
// zero when the clients are gone.
func (f *fleet) killUnderLoad(t *testing.T, l *load, store *goredis.Client) {
	t.Helper()
	var looks atomic.Int64
	over, watching := make(chan struct{}), sync.WaitGroup{}
	negative := func(where string, v float64) {
		if v < 0 {
			t.Errorf("%s is %v", where, v)
		}
	}
	watching.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
			}
			for _, n := range f.nodes() {
				for _, name := range inflight(n) {
					if v, err := n.metric(name); err == nil { // else it is dead now
						looks.Add(1)
						negative(n.name+" "+name, v)
					}
				}
			}
			for name, v := range counts(store) {
				looks.Add(1)
				negative("Redis "+name, v)
			}
		}
	})
	victim, kills := f.agents[1], 100
	ran := f.starts(t)[1]
	got, total, refused := l.phase(func() {
		for range kills {
			if err := victim.end(syscall.SIGKILL, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if err := victim.start(); err != nil {
				t.Fatal(err)
			}
			f.whole(t, 10*time.Second)
			time.Sleep(2500 * time.Millisecond) // it takes lanes, and is amid some answers then
		}
	})
	if ran = f.starts(t)[1] - ran; ran < float64(kills) {
		t.Errorf("%s ran %v requests in %d lives: too little to prove anything", victim.name, ran, kills)
	}
	close(over)
	watching.Wait()
	t.Logf("%s killed %d times under load, with %v requests in between: of all %d requests %d without a whole answer: %v; %d counts looked at, none negative",
		victim.name, kills, ran, total, refused, got, looks.Load())
	l.stop()
	l.all.Wait()
	took := eventually(t, 60*time.Second, func() string {
		for _, n := range f.nodes() {
			for _, name := range inflight(n) {
				if v, err := n.metric(name); err != nil || v != 0 {
					return fmt.Sprintf("%s: %s is %v, %v", n.name, name, v, err)
				}
			}
			if n.agent {
				if v, err := n.metricAt(engine, "vllm:num_requests_running"); err != nil || v != 0 {
					return fmt.Sprintf("%s's engine runs %v requests, %v", n.name, v, err)
				}
			}
		}
		for name, v := range counts(store) {
			if v != 0 {
				return fmt.Sprintf("Redis counts %s = %v", name, v)
			}
		}
		return ""
	})
	t.Logf("at rest %v after the last client: all counts are zero", took.Round(time.Millisecond))
}

// inflight are the gauges of what a node holds.
func inflight(n *node) []string {
	if n.agent {
		return []string{"penstock_inflight_requests", "penstock_inflight_tokens", "penstock_room_requests", "penstock_engine_credit_tokens"}
	}
	return []string{"penstock_open_requests"}
}

// counted are the fields of a lane or model that count what waits or runs.
var counted = regexp.MustCompile(`^[nbqt]$|.*:[oqtbl]$`)

func counts(store *goredis.Client) map[string]float64 {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	all := map[string]float64{}
	for _, pattern := range []string{"penstock:lane:*", "penstock:model:*"} {
		keys := store.Scan(ctx, 0, pattern, 1000).Iterator()
		for keys.Next(ctx) {
			fields, _ := store.HGetAll(ctx, keys.Val()).Result()
			for field, text := range fields {
				var v float64
				if counted.MatchString(field) && (strings.Contains(keys.Val(), ":lane:") || strings.Contains(field, ":")) {
					if _, err := fmt.Sscan(text, &v); err == nil {
						all[keys.Val()+" "+field] = v
					}
				}
			}
		}
	}
	return all
}
