//go:build e2e

package fleet

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// TestDrain: an agent is told to end under load: it finishes what it runs, and no
// client notices.
func TestDrain(t *testing.T) {
	f := the(t)
	l := f.startLoad(t, 15, 1<<20, func(i int) ask {
		return ask{model: alpha, prompt: fmt.Sprintf("drain %d", i), tokens: 60, stream: i%2 == 0, key: key(i % 20), header: patient}
	})
	time.Sleep(2 * time.Second)
	began := time.Now()
	if err := f.agents[0].end(syscall.SIGTERM, 40*time.Second); err != nil {
		t.Errorf("the agent's end: %v", err)
	}
	ended := time.Since(began)
	time.Sleep(3 * time.Second)
	replies := l.stop()
	if n := f.tally(t, replies); n[whole] != len(replies) {
		t.Errorf("%d of %d requests got their whole answer", n[whole], len(replies))
	}
	if err := f.agents[0].start(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the agent ended %v after SIGTERM; at rest after %v", ended.Round(time.Millisecond), f.calm(t, 60*time.Second))
}
