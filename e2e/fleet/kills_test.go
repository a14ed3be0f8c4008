//go:build e2e

package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/queue/rocketmq/proxy"
)

// kill is one component's death, and how it comes back.
type kill struct {
	name   string
	within time.Duration // from its being ready until all is served again, at most
	end    func() error
	start  func() error // returns when it is ready
}

// kills are the components. An agent or a gateway is ready when it says so, Redis when
// it answers a ping, the name server when it takes connections. Broker and proxy are
// ready when the proxy answers a client's question for the topic's route with the
// broker: a proxy takes connections, and a broker reports success, before that.
func (f *fleet) kills() []kill {
	verbs := func(name, verb string, within time.Duration, ready func() error) kill {
		return kill{
			name, within,
			func() error { _, err := stack("kill-" + verb); return err },
			func() error {
				_, err := stack("start-" + verb)
				return errors.Join(err, ready())
			},
		}
	}
	one := func(name string, parts []*part) kill {
		turn := -1
		return kill{
			name, 10 * time.Second,
			func() error {
				turn = (turn + 1) % len(parts)
				return parts[turn].end(syscall.SIGKILL, 5*time.Second)
			},
			func() error { return errors.Join(parts[turn].start(), parts[turn].awaitReady(30*time.Second)) },
		}
	}
	return []kill{
		one("agent", f.agents), one("gateway", f.gateways),
		verbs("name server", "namesrv", 15*time.Second, func() error { return nil }), verbs("broker", "broker", 10*time.Second, routed), verbs("proxy", "proxy", 10*time.Second, routed),
		{"redis", 10 * time.Second, killRedis, func() error { _, err := script("", "scripts/redis", "start"); return err }},
	}
}

// routed waits until the proxy says where the topic is.
func routed() error {
	cfg := proxy.DefaultConfig()
	cfg.Endpoint = addr(5)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		got, err := proxy.Inspect(ctx, cfg)
		cancel()
		if err == nil && got.Route.OK() && len(got.Brokers) > 0 {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("the proxy does not route the topic to the broker 30 s after the start: %v", got.Route), err)
		}
	}
}

var only = flag.String("only", "", "components that TestKills kills, separated by commas; empty = all")

// toll is what the kills of one component cost.
type toll struct {
	kills             int
	away, first, same time.Duration // the longest: from the kill to ready, and from ready to served
}

// fewest requests of the full form.
const fewest = 4000

// TestKills: each component dies by -9 at random points under load and is started
// again. Every request has exactly one outcome or its gateway died, nothing is spliced,
// and then everything is at rest.
func TestKills(t *testing.T) {
	f := the(t)
	random := rand.New(rand.NewPCG(*seed, 1))
	components := f.kills()
	if *only != "" {
		components = slices.DeleteFunc(components, func(k kill) bool { return !slices.Contains(strings.Split(*only, ","), k.name) })
	}
	var order []int
	for i := range components {
		order = append(order, slices.Repeat([]int{i}, *points)...)
	}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	l := f.startLoad(t, 10, 1<<20, func(i int) ask {
		draw := rand.New(rand.NewPCG(*seed, uint64(i)+2))
		a := ask{model: alpha, prompt: fmt.Sprintf("kills %d %d", *seed, i), tokens: 1 + draw.IntN(30), stream: draw.IntN(2) == 0, key: key(draw.IntN(40)), header: patient}
		if draw.IntN(4) == 0 {
			a.model, a.tokens = beta, 1+draw.IntN(10)
		}
		return a
	})
	began := time.Now()
	tolls := make([]toll, len(components))
	for _, i := range order {
		c := &components[i]
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
		first, same := f.serving(t, l, fmt.Sprintf("%d %s", *seed, c.name))
		if same > c.within {
			t.Errorf("%s was ready for %v before everybody was served again, want at most %v", c.name, same, c.within)
		}
		toll := &tolls[i]
		toll.kills, toll.away, toll.first, toll.same = toll.kills+1, max(toll.away, ready.Sub(at)), max(toll.first, first), max(toll.same, same)
		t.Logf("%6.1fs %s killed, ready after %v, all served again %v later, in the first lane %v", at.Sub(began).Seconds(), c.name,
			ready.Sub(at).Round(time.Millisecond), first.Round(time.Millisecond), same.Round(time.Millisecond))
	}
	replies := l.stop()
	f.tally(t, replies)
	if *full && *only == "" && len(replies) < fewest {
		t.Errorf("%d requests, want at least %d: more -points", len(replies), fewest)
	}
	took := time.Since(began)
	lines := new(strings.Builder)
	for i, c := range components {
		fmt.Fprintf(lines, "\n  %-12s %6d  %8.1fs  %8.1fs  %8.1fs  %6.0fs", c.name, tolls[i].kills, tolls[i].away.Seconds(), tolls[i].first.Seconds(), tolls[i].same.Seconds(), c.within.Seconds())
	}
	t.Logf("%d kills in %v; the longest from the kill until ready, and from ready until every gateway answered for every model, in any of several lanes and in the first:\n  %-12s %6s  %9s  %9s  %9s  %7s%s",
		len(order), took.Round(time.Second), "component", "kills", "ready", "any lane", "one lane", "allowed", lines)
	f.rest(t, 3*time.Minute)
}

// serving waits until each gateway has answered for each model a request that began
// after the call, and returns how long that took: first in any of several lanes, the next
// one begun a second after each that is not answered, and same in the first of them.
// Requests and tenants are the load's and nobody else's.
func (f *fleet) serving(t *testing.T, l *load, name string) (first, same time.Duration) {
	t.Helper()
	const lanes, within = 15, time.Minute
	began := time.Now()
	var pairs sync.WaitGroup
	var mu sync.Mutex // guards first and same
	for g, gateway := range f.gateways {
		for m, model := range []string{alpha, beta} {
			served := make(chan int, lanes)
			var refused []string // of the first lane; read once it is served
			try := func(lane int) {
				for i := 0; time.Since(began) < within; i++ {
					r := send(context.Background(), gateway, ask{
						model: model, prompt: fmt.Sprintf("after %s %d %d %d %d", name, g, m, lane, i), tokens: 1, stream: i%2 == 0,
						key: key(50 + 20*lane + 10*g + m), header: patient,
					}, nil)
					l.add(r)
					if r.status == http.StatusOK && r.code == "" && r.broken == nil {
						served <- lane
						return
					}
					if what := fmt.Sprint(r.status, " ", r.code); lane == 0 && (len(refused) == 0 || refused[len(refused)-1] != what) {
						refused = append(refused, what)
					}
					time.Sleep(50 * time.Millisecond)
				}
			}
			pairs.Go(func() {
				end, more := time.After(within), time.NewTimer(0)
				for begun, answered := 0, 0; ; {
					select {
					case <-more.C:
						if answered == 0 && begun < lanes {
							lane := begun
							l.all.Go(func() { try(lane) })
							begun++
							more.Reset(time.Second)
						}
					case lane := <-served:
						mu.Lock()
						if answered++; answered == 1 {
							first = max(first, time.Since(began))
						}
						if lane == 0 {
							took := time.Since(began)
							same = max(same, took)
							mu.Unlock()
							if took > 5*time.Second {
								t.Logf("%s, %s: the first lane was served after %v, and refused with %q before", gateway.name, model, took.Round(time.Millisecond), refused)
							}
							return
						}
						mu.Unlock()
					case <-end:
						t.Errorf("%s answers nothing for %s in one lane within %v of a restart", gateway.name, model, within)
						return
					}
				}
			})
		}
	}
	pairs.Wait()
	return first, same
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
