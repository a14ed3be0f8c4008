//go:build e2e

package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/policy"
)

// plainPolicy limits nothing: it is in force wherever a test does not say otherwise.
const plainPolicy = "lanes: {default: {}}\n"

// policyFile is read by all gateways and agents.
func policyFile() string { return filepath.Join(home, "policy.yaml") }

func writePolicy(text string) error {
	next := policyFile() + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, policyFile())
}

// rule makes text the policy of all gateways and agents until the test's end; it
// returns when all go by it.
func (f *fleet) rule(t *testing.T, text string) {
	t.Helper()
	t.Cleanup(func() { f.change(t, plainPolicy) })
	f.change(t, text)
}

func (f *fleet) change(t *testing.T, text string) {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := writePolicy(text); err != nil {
		t.Fatal(err)
	}
	for _, p := range f.withProbes() {
		if err := p.signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, func() string {
		for _, part := range f.withProbes() {
			if n, err := part.metric("penstock_policy_info", `hash="`+p.Hash+`"`); err != nil || n != 1 {
				return fmt.Sprintf("%s does not go by policy %s: %v", part.name, p.Hash, err)
			}
		}
		return ""
	})
}

// watched is how many requests engines ran at each look.
type watched struct {
	stop chan struct{}
	done sync.WaitGroup

	mu    sync.Mutex
	looks [][]float64 // by engine
}

// watch looks at engines every few milliseconds until end.
func watch(t *testing.T, engines ...*part) *watched {
	w := &watched{stop: make(chan struct{})}
	w.done.Go(func() {
		for {
			look := make([]float64, len(engines))
			for i, e := range engines {
				n, err := e.metric("vllm:num_requests_running")
				if err != nil {
					t.Error(err)
					return
				}
				look[i] = n
			}
			w.mu.Lock()
			w.looks = append(w.looks, look)
			w.mu.Unlock()
			select {
			case <-w.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	return w
}

// end returns the looks so far and looks no more.
func (w *watched) end() [][]float64 {
	close(w.stop)
	w.done.Wait()
	return w.looks
}

// TestLaneConcurrency: of one tenant two requests run on each engine, never more, and
// the next one starts when one ends.
func TestLaneConcurrency(t *testing.T) {
	f := the(t)
	const seats, requests, tokens = 2, 20, 60
	tenant := f.freshTenant()
	f.rule(t, fmt.Sprintf("lanes: {patterns: [{tenant: tenant-%d, concurrency: %d}]}\n", tenant, seats))
	var all sync.WaitGroup
	var ended atomic.Int32
	w := watch(t, f.engines[:2]...)
	began := time.Now()
	for i := range requests {
		a := ask{model: alpha, prompt: fmt.Sprintf("seats %d", i), tokens: tokens, stream: i%2 == 0, key: key(tenant), header: patient}
		all.Go(func() {
			r := send(t.Context(), f.gateways[i/2%2], a, nil)
			if got, err := f.judge(r); got != whole || err != nil {
				t.Errorf("request %d: %s %v", i, got, err)
			}
			ended.Add(1)
		})
	}
	all.Wait()
	took := time.Since(began)
	most, sum, n, full := [2]float64{}, 0., 0, false
	looks := w.end()
	for i, look := range looks {
		most[0], most[1] = max(most[0], look[0]), max(most[1], look[1])
		full = full || look[0]+look[1] == 2*seats
		if full && i < len(looks)*3/4 { // the last quarter is the last ones' end
			sum, n = sum+look[0]+look[1], n+1
		}
	}
	least := requests / (2 * seats) * tokens * 10 * time.Millisecond // of empty steps
	t.Logf("%d requests, %d at once on each of two engines: %v, %v at least; on average %.2f of %d ran; at most %v on each",
		requests, seats, took.Round(time.Millisecond), least, sum/float64(n), 2*seats, most)
	if most != [2]float64{seats, seats} {
		t.Errorf("at most %v ran on each engine, want %d", most, seats)
	}
	if used := sum / float64(n) / (2 * seats); used < 0.75 {
		t.Errorf("%.0f %% of the places were used while others waited, want 75 %% at least", 100*used)
	}
	for _, a := range f.agents[:2] {
		if _, state, err := get(a.admin + "/debug/state"); err != nil || !strings.Contains(state, `"lane_concurrency"`) {
			t.Errorf("%s: no decision for lane_concurrency in /debug/state (%v)", a.name, err)
		}
	}
}

// TestLaneWidth: of a lane of width 1 one request runs, wherever there is room, and
// "penstock status lanes" says so.
func TestLaneWidth(t *testing.T) {
	f := the(t)
	tenant := f.freshTenant()
	f.rule(t, fmt.Sprintf("lanes: {patterns: [{tenant: tenant-%d, width: 1}]}\n", tenant))
	var all sync.WaitGroup
	w := watch(t, f.engines[:2]...)
	for i := range 3 {
		all.Go(func() {
			r := send(t.Context(), f.gateways[i%2], ask{model: alpha, prompt: fmt.Sprintf("narrow %d", i), tokens: 100, key: key(tenant), header: patient}, nil)
			if got, err := f.judge(r); got != whole || err != nil {
				t.Errorf("request %d: %s %v", i, got, err)
			}
		})
	}
	eventually(t, 5*time.Second, func() string {
		out, err := exec.Command(binary, "status", "lanes", "-o", "json", "--grpc", addr(20)).Output()
		var said struct {
			Lanes []struct {
				Tenant  string
				Backlog int    `json:"backlog_requests"`
				Running int    `json:"running_requests"`
				Limited string `json:"limited_by"`
				Width   int
			}
		}
		if err == nil {
			err = json.Unmarshal(out, &said)
		}
		for _, l := range said.Lanes {
			if l.Tenant == fmt.Sprintf("tenant-%d", tenant) && l.Backlog == 2 && l.Running == 1 && l.Width == 1 && l.Limited == "lane_width" {
				return ""
			}
		}
		return fmt.Sprintf("status lanes: %v\n%s", err, out)
	})
	all.Wait()
	for _, look := range w.end() {
		if look[0]+look[1] > 1 {
			t.Fatalf("the engines ran %v at once, want one", look)
		}
	}
}

// TestPolicyChanges: what a lane may changes again and again while requests run and
// wait; each gets its whole answer.
func TestPolicyChanges(t *testing.T) {
	f := the(t)
	changes := 16
	if *full {
		changes = 300
	}
	policies := []string{
		"lanes: {default: {concurrency: 1}}\n",
		"lanes: {default: {width: 1}}\n",
		"lanes: {default: {concurrency: 3, starts-per-second: 5, width: 4}}\n",
		"tiers: [{name: first}, {name: default, ceiling: 0.5}]\nlanes: {default: {concurrency: 2}}\n",
		plainPolicy,
	}
	l := f.startLoad(t, 20, 1<<20, func(i int) ask {
		return ask{model: alpha, prompt: fmt.Sprintf("changes %d", i), tokens: 5 + i%30, stream: i%2 == 0, key: key(60 + i%3), header: patient}
	})
	began := time.Now()
	t.Cleanup(func() { f.change(t, plainPolicy) })
	for i := range changes {
		f.change(t, policies[i%len(policies)])
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%d changes in %v", changes, time.Since(began).Round(time.Millisecond))
	f.change(t, plainPolicy)
	replies := l.stop()
	if n := f.tally(t, replies); n[whole] != len(replies) {
		t.Errorf("%d of %d requests got their whole answer", n[whole], len(replies))
	}
}
