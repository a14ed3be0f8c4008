//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// prefilled is how many prompt tokens an engine has computed: each execution counts.
func prefilled(t *testing.T, engines ...*part) (sum float64) {
	t.Helper()
	for _, e := range engines {
		n, err := e.metric("vllm:prompt_tokens_total")
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// TestRedisEmptied: Redis loses everything while requests run: each goes on whole or
// ends with an error, and new ones are served.
func TestRedisEmptied(t *testing.T) {
	f := the(t)
	var all sync.WaitGroup
	var streaming atomic.Int32
	outcomes := make([]string, 12)
	for i := range outcomes {
		a := ask{model: alpha, prompt: fmt.Sprintf("emptied %d", i), tokens: 400, stream: i%2 == 0, key: key(i), header: patient}
		all.Go(func() {
			r := send(t.Context(), f.gateways[i/2%2], a, func(r *reply) {
				if r.chunks == 10 {
					streaming.Add(1)
				}
			})
			var err error
			if outcomes[i], err = f.judge(r); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	eventually(t, 15*time.Second, func() string {
		if n := streaming.Load(); n < 6 {
			return fmt.Sprintf("%d of 6 streams have ten chunks", n)
		}
		return ""
	})
	if err := f.redis.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	emptied := time.Now()
	l := f.startLoad(t, 5, 100, func(i int) ask {
		return ask{model: alpha, prompt: fmt.Sprintf("after emptied %d", i), tokens: 3, stream: i%2 == 0, key: key(i % 9)}
	})
	eventually(t, 20*time.Second, func() string {
		if l.answeredAfter(emptied, anyOf) == 0 {
			return "no request was answered after Redis was emptied"
		}
		return ""
	})
	all.Wait()
	f.tally(t, l.stop())
	t.Logf("outcomes of those that ran: %v; the first new answer came after %v; at rest after %v",
		outcomes, l.answeredAfter(emptied, anyOf).Round(time.Millisecond), f.calm(t, 90*time.Second))
}

// expired is how many requests ended because they had not started in time.
func (f *fleet) expired(t *testing.T) (sum float64) {
	t.Helper()
	for _, g := range f.gateways {
		n, err := g.metric("penstock_refusals_total", `reason="queue_deadline_exceeded"`)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// TestBrokerRestarts: the broker is killed and started under a stream that is past its
// start deadline, half a minute long or five: one execution, the whole answer.
func TestBrokerRestarts(t *testing.T) {
	f := the(t)
	tokens := 300
	if *full {
		tokens = 3000
	}
	before, expired := prefilled(t, f.engines[2]), f.expired(t)
	a := ask{
		model: beta, prompt: "a long stream", tokens: tokens, stream: true, key: key(0),
		header: map[string][]string{"X-Penstock-Start-Timeout-Ms": {"3000"}},
	}
	begun, done := make(chan struct{}), make(chan *reply, 1)
	go func() {
		done <- send(context.WithoutCancel(t.Context()), f.gateways[0], a, func(r *reply) {
			if r.chunks == 10 {
				close(begun)
			}
		})
	}()
	select {
	case <-begun:
	case r := <-done:
		t.Fatalf("the stream ended early: %d %s %v", r.status, r.code, r.broken)
	}
	time.Sleep(4 * time.Second) // past the start deadline
	began := time.Now()
	for _, verb := range []string{"kill-broker", "start-broker"} {
		if _, err := stack(verb); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("broker away for %v", time.Since(began).Round(time.Millisecond))
	r := <-done
	if got, err := f.judge(r); got != whole || err != nil {
		t.Errorf("the stream: %s %v after %v and %d chunks", got, err, r.took, r.chunks)
	}
	if r.took < time.Duration(tokens)*slowToken {
		t.Errorf("the stream took %v, want %v at least", r.took, time.Duration(tokens)*slowToken)
	}
	f.rest(t, 90*time.Second)
	// The prompt is about ten tokens; a second execution would double them.
	if n := prefilled(t, f.engines[2]) - before; n < 1 || n > 15 {
		t.Errorf("%v prompt tokens were computed for one prompt of about ten", n)
	}
	if n := f.expired(t) - expired; n > 0 {
		t.Errorf("%v requests ended as expired, want none", n)
	}
	t.Logf("a stream of %v: one execution, nothing expired", r.took.Round(time.Second))
}

// TestSendTimesOut: the proxy takes a message too late: its client has been refused,
// and it never runs.
func TestSendTimesOut(t *testing.T) {
	f := the(t)
	before := prefilled(t, f.engines...)
	proxy, err := rocketmqPid("proxy")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(proxy, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			r := send(t.Context(), f.gateways[i%2], ask{model: alpha, prompt: fmt.Sprintf("late %d", i), tokens: 3, key: key(i)}, nil)
			if got, err := f.judge(r); got != "refused: 503 broker_away" || err != nil {
				t.Errorf("request %d: %s %v after %v, want 503 broker_away", i, got, err, r.took)
			}
		})
	}
	all.Wait()
	if err := syscall.Kill(proxy, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // what the proxy still had is in the lanes now
	f.calm(t, 60*time.Second)
	again := eventually(t, 20*time.Second, func() string {
		r := send(t.Context(), f.gateways[0], ask{model: alpha, prompt: "after late", tokens: 3, key: key(0)}, nil)
		if got, err := f.judge(r); got != whole || err != nil {
			return fmt.Sprintf("a request behind those: %s %v", got, err)
		}
		return ""
	})
	t.Logf("served again %v after the proxy went on and all was at rest", again.Round(time.Millisecond))
	if n := prefilled(t, f.engines...) - before; n > 15 {
		t.Errorf("%v prompt tokens were computed, want those of one prompt: a refused request ran", n)
	}
}
