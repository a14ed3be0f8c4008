// Package doctor says whether a machine, its broker, its Redis and its engine are
// what penstock needs, and what to do where they are not.
//
// What is seen comes in through Probes; what it means is a function of it. A check
// is a value: nothing here logs, and a thing that is away is a line, not an error.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"penstock/queue/rocketmq/proxy"
	"penstock/registry/redis"
	"penstock/scraper"
	"penstock/vllm"
)

// within bounds each probe. A group makes at most three after one another, and the
// groups run side by side: all of it takes less than 10 s.
const within = 3 * time.Second

// Status is how a check came out. Its values are part of the JSON form.
type Status string

// The outcomes. Warn is also what cannot be seen from here.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Check is one line.
type Check struct {
	Group    string `json:"group"` // RocketMQ, Redis, Engine or Host
	Name     string `json:"name"`
	Status   Status `json:"status"`
	Evidence string `json:"evidence"`      // what was seen
	Fix      string `json:"fix,omitempty"` // what to do; several commands are several lines
}

// Config is what the user calls things; it goes into evidence and fixes.
type Config struct {
	RocketMQ     string // HOST:PORT of the proxy
	Topic, Group string
	Redis        string // without its password
	Engine       string // URL; "" = none is looked at
	Ports        []Port // this process's listeners to be
}

// Port is an address and the flag that sets it.
type Port struct{ Flag, Address string }

// Probes look at the world; each ends soon after its context.
type Probes struct {
	Dial      func(ctx context.Context, address string) error
	RocketMQ  func(ctx context.Context) (proxy.Report, error)
	Redis     func(ctx context.Context) (redis.Report, error)
	Models    func(ctx context.Context) ([]vllm.Model, error)
	Version   func(ctx context.Context) (string, error)
	Page      func(ctx context.Context) (scraper.Report, error)
	OpenFiles func() (limit uint64, err error)
	Drift     func(ctx context.Context) time.Duration // of the wall clock against the monotonic one, over a moment
	Listen    func(ctx context.Context, address string) (Listener, error)
}

// Listener is what is found at an address of ours.
type Listener uint8

// The findings.
const (
	Free     Listener = iota
	Ours              // a penstock serves there
	Stranger          // another program does
)

// Run makes all checks, in a fixed order.
func Run(ctx context.Context, cfg Config, p Probes) []Check {
	groups := []struct {
		name  string
		check func(context.Context, Config, Probes) []Check
	}{{"RocketMQ", checkRocketMQ}, {"Redis", checkRedis}, {"Engine", checkEngine}, {"Host", checkHost}}
	found := make([][]Check, len(groups))
	var all sync.WaitGroup
	for i, g := range groups {
		all.Go(func() { found[i] = g.check(ctx, cfg, p) })
	}
	all.Wait()
	var checks []Check
	for i, g := range groups {
		for _, c := range found[i] {
			c.Group = g.name
			checks = append(checks, c)
		}
	}
	return checks
}

// Count is how many of checks came out as s.
func Count(checks []Check, s Status) int {
	n := 0
	for _, c := range checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// ask calls a probe within its time.
func ask[T any](ctx context.Context, probe func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	got, err := probe(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", within)
	}
	return got, err
}

func ok(name, format string, args ...any) Check {
	return Check{Name: name, Status: OK, Evidence: fmt.Sprintf(format, args...)}
}

// judge is OK, or bad with the fix.
func judge(name string, good bool, bad Status, evidence, fix string) Check {
	if good {
		return Check{Name: name, Status: OK, Evidence: evidence}
	}
	return Check{Name: name, Status: bad, Evidence: evidence, Fix: fix}
}

func fail(name string, err error, fix string) Check {
	return Check{Name: name, Status: Fail, Evidence: oneLine(err.Error()), Fix: fix}
}

// oneLine is the first line of what another program said, at most 300 bytes of it.
func oneLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
