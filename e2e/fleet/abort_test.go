//go:build e2e

package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// abortWithin is how long it may take from the client's close until the engine's
	// blocks are free, beside two of its steps.
	abortWithin = 100 * time.Millisecond
	abortLook   = 5 * time.Millisecond // how often the engine is looked at: the error of a figure

	longPrompt = 6000 * 4 // bytes: three prefill chunks of the engine's 2,048 tokens
	// Steps of alpha's engines by sim/engine's defaults, with their base of 10 ms.
	decodeStep, prefillStep = 11 * time.Millisecond, 10*time.Millisecond + 2048*100*time.Microsecond
)

// aborted is how many requests are cut, of each form.
func aborted() int {
	if *full {
		return 100
	}
	return 16
}

// cut is a request whose client leaves, and when.
type cut struct {
	stage string
	ask   ask
	after time.Duration // from its being in the engine, or
	chunk int           // at this chunk
	step  time.Duration // the longest one the engine may be in
}

var stages = []string{"before the first token", "at a chunk", "at any time"} // the first of a long prompt

// newCut draws the i-th.
func newCut(random *rand.Rand, i int) cut {
	c := cut{ask: ask{model: alpha, prompt: fmt.Sprintf("cut %d %d", *seed, i), tokens: 400, stream: true, key: key(i % 40), header: patient}, step: decodeStep}
	c.stage = stages[i%len(stages)]
	switch i % len(stages) {
	case 0:
		c.step = prefillStep
		c.ask.prompt += strings.Repeat(" long", longPrompt/5)
		c.after = time.Duration(random.Int64N(int64(5 * prefillStep / 2)))
	case 1:
		c.chunk = 1 + random.IntN(20)
	case 2:
		c.after = time.Duration(random.Int64N(int64(200 * time.Millisecond)))
		c.ask.stream = random.IntN(2) == 0
	}
	return c
}

// held is what an engine holds.
func held(e *part) (requests, kv float64, err error) {
	running, err1 := e.metric("vllm:num_requests_running")
	waiting, err2 := e.metric("vllm:num_requests_waiting")
	kv, err3 := e.metric("vllm:kv_cache_usage_perc")
	return running + waiting, kv, errors.Join(err1, err2, err3)
}

// leave sends c to door and closes the connection at its moment; it returns how long
// one of engines, which hold nothing else, still held it. before is called just before.
func leave(t *testing.T, door *part, engines []*part, c cut, before func()) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reached, over := make(chan struct{}), make(chan *reply, 1)
	go func() {
		over <- send(ctx, door, c.ask, func(r *reply) {
			if r.chunks == c.chunk {
				close(reached)
			}
		})
	}()
	var holds *part
	for end := time.Now().Add(20 * time.Second); holds == nil; time.Sleep(abortLook) {
		for _, e := range engines {
			if n, _, err := held(e); err != nil {
				t.Fatal(err)
			} else if n > 0 {
				holds = e
			}
		}
		select {
		case r := <-over:
			t.Fatalf("%s: it ended before its client left: %d %q %v", c.stage, r.status, r.code, r.broken)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s: no engine holds it after 20 s", c.stage)
		}
	}
	if c.chunk > 0 {
		select {
		case <-reached:
		case r := <-over:
			t.Fatalf("%s: it ended before chunk %d: %d %q %v", c.stage, c.chunk, r.status, r.code, r.broken)
		}
	}
	time.Sleep(c.after)
	before()
	left := time.Now()
	cancel()
	<-over // closed
	for {
		n, kv, err := held(holds)
		took := time.Since(left)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 && kv == 0 {
			return took
		}
		if took > 20*time.Second {
			t.Fatalf("%s: the engine holds %g requests and %.0f %% of its blocks 20 s after the client left", c.stage, n, 100*kv)
		}
		time.Sleep(abortLook)
	}
}

// cutAll makes the cuts, one after the other, and holds their times against the bound.
func cutAll(t *testing.T, doors, engines []*part) {
	t.Helper()
	random := rand.New(rand.NewPCG(*seed, 3))
	took, beyond := map[string][]float64{}, []float64{}
	for i := range aborted() {
		c := newCut(random, i)
		free := leave(t, doors[i%len(doors)], engines, c, func() {})
		took[c.stage] = append(took[c.stage], free.Seconds()*1000)
		beyond = append(beyond, (free-2*c.step).Seconds()*1000)
	}
	for _, stage := range stages {
		v := took[stage]
		t.Logf("%-22s %3d: from the client's close until the blocks are free p50 %.0f ms, p99 %.0f ms", stage, len(v), quantile(v, 0.5), quantile(v, 0.99))
	}
	p99 := quantile(beyond, 0.99)
	t.Logf("beyond two steps: p50 %.0f ms, p99 %.0f ms, want at most %v", quantile(beyond, 0.5), p99, abortWithin)
	if p99 > float64(abortWithin.Milliseconds()) {
		t.Errorf("p99 is %.0f ms beyond two steps, want at most %v", p99, abortWithin)
	}
}

// directly counts the direct aborts of all gateways.
func (f *fleet) directly(t *testing.T, outcome string) (n float64) {
	t.Helper()
	for _, g := range f.gateways {
		one, err := g.metric("penstock_direct_aborts_total", `outcome="`+outcome+`"`)
		if err != nil {
			t.Fatal(err)
		}
		n += one
	}
	return n
}

func (f *fleet) logDirect(t *testing.T) {
	t.Helper()
	t.Logf("direct aborts so far: %g stopped it, %g found it stopped, %g timed out, %g failed, %g dropped, %g without an address",
		f.directly(t, "stopped"), f.directly(t, "not_there"), f.directly(t, "timeout"), f.directly(t, "failed"), f.directly(t, "dropped"), f.directly(t, "no_address"))
}

// TestAborts: clients leave the fleet at random points; the engine is free at once,
// also while Redis hangs.
func TestAborts(t *testing.T) {
	f := the(t)
	cutAll(t, f.gateways, f.engines[:2])
	f.logDirect(t)
	if n := f.directly(t, "no_address") + f.directly(t, "failed") + f.directly(t, "dropped"); n > 0 {
		t.Errorf("%g direct aborts did not reach the agent, want 0", n)
	}
	if got, err := f.judge(send(t.Context(), f.gateways[0], ask{model: alpha, prompt: "after the aborts", tokens: 5, key: f.fresh()}, nil)); got != whole || err != nil {
		t.Errorf("a request afterwards: %s %v", got, err)
	}
}

// TestAbortsWithoutRedis: who streams is known, so nothing waits for Redis.
func TestAbortsWithoutRedis(t *testing.T) {
	f := the(t)
	pid, err := redisPid()
	if err != nil {
		t.Fatal(err)
	}
	sent := func(s syscall.Signal) func() {
		return func() {
			if err := syscall.Kill(pid, s); err != nil {
				t.Error(err)
			}
		}
	}
	defer sent(syscall.SIGCONT)()
	random := rand.New(rand.NewPCG(*seed, 4))
	var took []float64
	for i := range aborted() / 8 {
		c := newCut(random, 3*i+1) // at a chunk
		took = append(took, leave(t, f.gateways[i%2], f.engines[:2], c, sent(syscall.SIGSTOP)).Seconds()*1000)
		sent(syscall.SIGCONT)()
		f.calm(t, 60*time.Second)
	}
	t.Logf("with Redis frozen: p50 %.0f ms, longest %.0f ms", quantile(took, 0.5), quantile(took, 1))
	f.logDirect(t)
	if longest := quantile(took, 1); longest > float64((abortWithin + 2*decodeStep).Milliseconds()) {
		t.Errorf("with Redis frozen an engine was held for %.0f ms, want at most %v and two steps", longest, abortWithin)
	}
}

// TestAbortsStandalone: the same in the form without broker and Redis.
func TestAbortsStandalone(t *testing.T) {
	start := func(p *part) *part {
		p.log = filepath.Join(home, p.name+".log")
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.end(syscall.SIGKILL, 10*time.Second) })
		return p
	}
	engine := start(&part{name: "engine-alone", args: []string{"sim", "engine", "--listen", addr(60), "--model", alpha, "--step", "10ms", "--seed", "7"}, url: "http://" + addr(60)})
	eventually(t, 10*time.Second, func() string {
		c, err := net.Dial("tcp", addr(60))
		if err != nil {
			return err.Error()
		}
		_ = c.Close()
		return ""
	})
	alone := start(&part{
		name: "alone", url: "http://" + addr(61), admin: "http://" + addr(63),
		args: []string{"standalone", "--engine", engine.url, "--listen", addr(61), "--grpc", addr(62), "--admin", addr(63)},
	})
	if err := alone.awaitReady(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	cutAll(t, []*part{alone}, []*part{engine})
}
