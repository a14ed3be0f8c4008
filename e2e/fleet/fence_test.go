//go:build e2e

package fleet

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// crowd is streams and plain requests that were open when an agent failed.
type crowd struct {
	f       *fleet
	all     sync.WaitGroup
	mu      sync.Mutex
	streams map[string]int // with ten chunks or more, by node
	chunks  map[*reply]int // of each stream when the agent failed
	heard   map[*reply]int // of each stream so far
	replies []*reply
}

// gather opens four streams and eight plain requests for alpha, each of tokens.
func (f *fleet) gather(t *testing.T, name string, tokens int) *crowd {
	c := &crowd{f: f, streams: map[string]int{}, heard: map[*reply]int{}}
	for i := range 12 {
		a := ask{model: alpha, prompt: fmt.Sprintf("%s %d", name, i), tokens: tokens, stream: i < 4, key: key(i), header: patient}
		c.all.Go(func() {
			r := send(t.Context(), f.gateways[i%2], a, func(r *reply) {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.heard[r] = r.chunks; r.chunks == 10 {
					c.streams[r.node()]++
				}
			})
			c.mu.Lock()
			c.replies = append(c.replies, r)
			c.mu.Unlock()
		})
	}
	return c
}

// busiest waits until every stream has ten chunks and returns an agent that runs a
// stream and a plain request.
func (c *crowd) busiest(t *testing.T) (node *part, plain int) {
	t.Helper()
	eventually(t, 15*time.Second, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := c.streams["node0"] + c.streams["node1"]; n < 4 {
			for _, r := range c.replies {
				return fmt.Sprintf("%s ended: %d %s %v", r.ask.prompt, r.status, r.code, r.broken)
			}
			return fmt.Sprintf("%d of 4 streams have ten chunks", n)
		}
		for i, a := range c.f.agents[:2] {
			running, err := c.f.agents[i].metric("penstock_inflight_requests")
			if n := int(running) - c.streams[a.name]; err == nil && c.streams[a.name] > 0 && n > 0 {
				node, plain = a, n
				return ""
			}
		}
		return "no agent runs a stream and a plain request"
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chunks = map[*reply]int{}
	for r, n := range c.heard {
		c.chunks[r] = n
	}
	return node, plain
}

// check waits for all outcomes. Streams of the failed agent keep what was heard and end
// as lost, its plain requests run again elsewhere, everything else is untouched. An
// agent that came back may end what nobody has taken over.
func (c *crowd) check(t *testing.T, failed *part, plain int, cameBack bool) {
	t.Helper()
	c.all.Wait()
	lost, again, itself := 0, 0, 0
	var slowest time.Duration
	for _, r := range c.replies {
		got, err := c.f.judge(r)
		slowest = max(slowest, r.took)
		first := r.header.Get("X-Penstock-Attempts") == "1"
		switch {
		case err != nil:
			t.Errorf("%s: %v", r.ask.prompt, err)
		case got == whole && first && r.node() == failed.name:
			itself++
			if !cameBack {
				t.Errorf("%s: a dead agent gave the whole answer", r.ask.prompt)
			}
		case r.ask.stream && r.node() == failed.name:
			lost++
			if got != "cut short: upstream_lost" || r.chunks < c.chunks[r] || r.chunks < 10 {
				t.Errorf("%s: a stream of the failed agent: %s after %d chunks, %d were there", r.ask.prompt, got, r.chunks, c.chunks[r])
			}
		case got != whole:
			t.Errorf("%s: %s", r.ask.prompt, got)
		case !first:
			again++
		}
	}
	if n := lost + again + itself; n != plain+c.streams[failed.name] {
		t.Errorf("%d outcomes tell of the failure, %d requests ran on the failed agent", n, plain+c.streams[failed.name])
	}
	if lost+again == 0 {
		t.Error("nobody took over what the failed agent ran")
	}
	t.Logf("of %d streams and %d plain requests of %s: %d ended as lost, %d ran again elsewhere, %d it ended itself; the slowest outcome took %v",
		c.streams[failed.name], plain, failed.name, lost, again, itself, slowest.Round(10*time.Millisecond))
}

// TestAgentKilled: an agent dies after the tenth chunk of its streams.
func TestAgentKilled(t *testing.T) {
	f := the(t)
	c := f.gather(t, "killed", 400)
	victim, plain := c.busiest(t)
	if err := victim.end(syscall.SIGKILL, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	c.check(t, victim, plain, false)
	if err := victim.start(); err != nil {
		t.Fatal(err)
	}
	t.Logf("at rest %v after the last outcome and the agent's restart", f.calm(t, 60*time.Second))
}

// TestAgentFrozen: an agent stops past its ownership, its engine goes on, and then it
// comes back with all it has read: nobody hears it.
func TestAgentFrozen(t *testing.T) {
	f := the(t)
	frozen, tokens := 20*time.Second, 800 // the broker's lease is over after at most 15 s
	if *full {
		frozen, tokens = 40*time.Second, 3000
	}
	c := f.gather(t, "frozen", tokens)
	victim, plain := c.busiest(t)
	if err := victim.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(frozen)
	if err := victim.signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.check(t, victim, plain, true)
	t.Logf("frozen for %v; at rest %v after the last outcome", frozen, f.calm(t, 60*time.Second))
}
