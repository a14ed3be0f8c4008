//go:build e2e

package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kill is one component's death, and how it comes back.
type kill struct {
	name  string
	slow  bool // to come back; the short form kills it once here and once in TestBrokerRestarts or queue/rocketmq
	end   func() error
	start func() error
}

func (f *fleet) kills() []kill {
	verbs := func(name string) kill {
		return kill{
			name, true,
			func() error { _, err := rocketmq("kill-" + name); return err },
			func() error { _, err := rocketmq("start-" + name); return err },
		}
	}
	one := func(name string, parts []*part) kill {
		turn := -1
		return kill{
			name, false,
			func() error {
				turn = (turn + 1) % len(parts)
				return parts[turn].end(syscall.SIGKILL, 5*time.Second)
			},
			func() error { return parts[turn].start() },
		}
	}
	return []kill{
		one("agent", f.agents), one("gateway", f.gateways), verbs("proxy"), verbs("broker"),
		{"redis", false, killRedis, func() error { _, err := script("", "scripts/redis", "start"); return err }},
	}
}

// servingWithin is how soon after a component is back every gateway must answer for
// every model: 10 s, and what a sample of the load and its answer take.
const servingWithin = 15 * time.Second

// TestKills: each component dies by -9 at random points under load and is started
// again. Every request has exactly one outcome or its gateway died, nothing is spliced,
// and then everything is at rest.
func TestKills(t *testing.T) {
	f := the(t)
	random := rand.New(rand.NewPCG(*seed, 1))
	components := f.kills()
	var order []int
	for i, c := range components {
		n := *points
		if c.slow && !*full {
			n = 1
		}
		order = append(order, slices.Repeat([]int{i}, n)...)
	}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	l := f.startLoad(10, 1<<20, func(i int) ask {
		draw := rand.New(rand.NewPCG(*seed, uint64(i)+2))
		a := ask{model: alpha, prompt: fmt.Sprintf("kills %d %d", *seed, i), tokens: 1 + draw.IntN(30), stream: draw.IntN(2) == 0, key: key(draw.IntN(40)), header: patient}
		if draw.IntN(4) == 0 {
			a.model, a.tokens = beta, 1+draw.IntN(10)
		}
		return a
	})
	began := time.Now()
	worst := map[string]time.Duration{}
	for _, i := range order {
		c := components[i]
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		at := time.Now()
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
		if err := c.start(); err != nil {
			t.Fatal(err)
		}
		ready := time.Now()
		again := f.serving(t, l, ready)
		worst[c.name] = max(worst[c.name], again)
		if again > servingWithin {
			t.Errorf("%s was back for %v before everybody was served again, want at most %v", c.name, again, servingWithin)
		}
		t.Logf("%6.1fs %s killed, back after %v, answers again after %v", at.Sub(began).Seconds(), c.name, ready.Sub(at).Round(time.Millisecond), again.Round(time.Millisecond))
	}
	replies := l.stop()
	f.tally(t, replies)
	t.Logf("%d kills in %v; worst time from a component's being back to the next answers of all gateways and engines: %v", len(order), time.Since(began).Round(time.Second), worst)
	t.Logf("at rest after %v", f.calm(t, 3*time.Minute).Round(time.Millisecond))
	t.Logf("lanes at the broker: %s", strings.TrimSpace(lag()))
}

// serving waits until each gateway and each model has answered a request that began
// after at, and returns how long that took.
func (f *fleet) serving(t *testing.T, l *load, at time.Time) time.Duration {
	t.Helper()
	var took time.Duration
	eventually(t, 60*time.Second, func() string {
		took = 0
		for _, g := range f.gateways {
			for _, model := range []string{alpha, beta} {
				least := l.answeredAfter(at, func(r *reply) bool { return r.gateway == g && r.ask.model == model })
				if least == 0 {
					return fmt.Sprintf("%s answers nothing for %s after a restart", g.name, model)
				}
				took = max(took, least)
			}
		}
		return ""
	})
	return took
}

// tally judges replies and counts them by outcome; a wrong one fails the test.
func (f *fleet) tally(t *testing.T, replies []*reply) map[string]int {
	t.Helper()
	n, again, wrong := map[string]int{}, 0, 0
	var slowest time.Duration
	for _, r := range replies {
		got, err := f.judge(r)
		if err != nil {
			if wrong++; wrong <= 10 {
				t.Errorf("%s (began %s): %v", r.ask.prompt, r.began.Format("15:04:05.000"), err)
			}
			got = "wrong"
		}
		n[got]++
		slowest = max(slowest, r.took)
		if a := r.header.Get("X-Penstock-Attempts"); a != "" && a != "1" {
			again++
		}
	}
	lines := new(strings.Builder)
	for _, got := range slices.Sorted(maps.Keys(n)) {
		fmt.Fprintf(lines, "\n  %6d %s", n[got], got)
	}
	t.Logf("%d requests, %d of them started more than once, the slowest outcome took %v:%s", len(replies), again, slowest.Round(time.Millisecond), lines)
	if n[whole] == 0 {
		t.Error("no request was answered")
	}
	return n
}
