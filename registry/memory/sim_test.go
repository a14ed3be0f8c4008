package memory

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

const (
	simCapacity = 8.6  // requests per second
	simTokens   = 1000 // mean of a request, log-normal with sigma 0.6
	simLimit    = 2 * time.Second
	simWarm     = 10 * time.Second
	simTail     = 65 * time.Second // for the last returns
)

// overload is one run: Poisson arrivals at load x capacity for a while, then at
// 0.7, before a server of tokens whose rate wanders by 10 % and whose requests
// take 20 % more or less than their tokens say. The rate is reported 0.5 s late
// with 10 % noise, times bias; bias 0 = never. A refused client comes back exactly
// when it was told, returns times.
type overload struct {
	load, bias float64
	length     time.Duration
	returns    int
}

// figures is what came of it.
type figures struct {
	fresh, refused, oracle            int // oracle: refusals of a door that knows the future
	back, backIn, backKept, backKept1 int // returns, admitted, to a kept place, of these admitted
	waits                             []float64
	busy                              time.Duration // of length - warm, with work waiting
}

func (f *figures) within() float64 {
	n := 0
	for _, w := range f.waits {
		if w <= simLimit.Seconds() {
			n++
		}
	}
	return float64(n) / float64(len(f.waits))
}

func part(n, of int) float64 { return float64(n) / float64(max(of, 1)) }

func (f *figures) String() string {
	slices.Sort(f.waits)
	at := func(q float64) float64 { return f.waits[int(q*float64(len(f.waits)-1))] }
	return fmt.Sprintf("%5d new, refused %.3f (oracle %.3f), wait p50 %.2f p95 %.2f p99 %.2f s, in limit %.3f; %4d back, in %.2f, to a kept place %4d, in %.2f",
		f.fresh, part(f.refused, f.fresh), part(f.oracle, f.fresh), at(.5), at(.95), at(.99), f.within(),
		f.back, part(f.backIn, f.back), f.backKept, part(f.backKept1, f.backKept))
}

// visit is one coming of a client.
type visit struct {
	at           time.Duration
	tokens, left int // left: returns
	again, kept  bool
	print        uint64
	noise        float64 // of its service time
	id           string
}

// sim is a run in progress, in virtual time.
type sim struct {
	overload
	figures
	*rand.Rand
	t     *testing.T
	r     *Registry
	epoch time.Time
	end   time.Duration

	wander       []float64 // true rate per 100 ms, relative
	reportAt     time.Duration
	report       float64
	next         visit
	back, queue  []visit
	free, oracle time.Duration // when the server is free
	waitingSince time.Duration
	count        int
}

func simulate(t *testing.T, o overload, seed uint64) *figures {
	t.Helper()
	var f *figures
	synctest.Test(t, func(t *testing.T) {
		r, err := New(testConfig(), func(string, []byte) error { return nil }, func(string, string, string) {})
		if err != nil {
			t.Fatal(err)
		}
		s := &sim{
			overload: o, Rand: rand.New(rand.NewPCG(seed, 7)), t: t, r: r,
			epoch: time.Now(), end: o.length + simTail, reportAt: -1, wander: []float64{1},
		}
		for range (s.end + simTail) / (100 * time.Millisecond) {
			s.wander = append(s.wander, 1+(s.wander[len(s.wander)-1]-1)*0.97+0.025*s.NormFloat64())
		}
		s.arrive()
		for s.step() {
		}
		if len(s.queue) > 0 {
			s.busy += max(0, o.length-max(s.waitingSince, simWarm))
		}
		f = &s.figures
	})
	return f
}

// rate is the server's, in tokens per second.
func (s *sim) rate(at time.Duration) float64 {
	return simCapacity * simTokens * s.wander[max(0, at)/(100*time.Millisecond)]
}

func (s *sim) reported(at time.Duration) float64 {
	if row := at / (200 * time.Millisecond); row != s.reportAt {
		s.reportAt, s.report = row, s.rate(at-500*time.Millisecond)*(1+0.1*s.NormFloat64())*s.bias
	}
	return s.report
}

func (s *sim) took(v visit, at time.Duration) time.Duration {
	return time.Duration(float64(v.tokens) / s.rate(at) * v.noise * float64(time.Second))
}

func (s *sim) arrive() {
	load := s.load
	if s.next.at > s.length {
		load = 0.7
	}
	const sigma = 0.6
	s.next = visit{
		at:     s.next.at + time.Duration(s.ExpFloat64()/(load*simCapacity)*float64(time.Second)),
		tokens: 1 + int(simTokens*math.Exp(sigma*s.NormFloat64()-sigma*sigma/2)),
		left:   s.returns, print: s.Uint64(), noise: math.Exp(0.2 * s.NormFloat64()),
	}
}

// step does the next thing: a start, a return or an arrival.
func (s *sim) step() bool {
	at := s.next.at
	back := len(s.back) > 0 && s.back[0].at < at
	if back {
		at = s.back[0].at
	}
	now := time.Since(s.epoch)
	start := len(s.queue) > 0 && max(s.free, now) <= at
	if start {
		at = max(s.free, now)
	}
	if at >= s.end {
		return false
	}
	time.Sleep(at - now)
	switch {
	case start:
		s.start(at)
	case back:
		v := s.back[0]
		s.back = s.back[1:]
		s.open(v)
	default:
		v := s.next
		s.arrive()
		s.open(v)
	}
	return true
}

var simLane = lane.Key{Tier: "default", Type: "chat", Model: "m"}

func (s *sim) start(at time.Duration) {
	v := s.queue[0]
	s.queue = s.queue[1:]
	c, err := s.r.Claim(context.Background(), registry.Start{ID: v.id, Attempt: v.id, Lane: simLane, Deadline: time.Now().Add(time.Minute)})
	if err != nil || c.Action != registry.Run {
		s.t.Fatalf("claim: %+v, %v", c, err)
	}
	if _, err := s.r.Finish(context.Background(), v.id, v.id, []byte("end"), quota.Usage{}); err != nil {
		s.t.Fatal(err)
	}
	s.waits = append(s.waits, (at - v.at).Seconds())
	s.free = at + s.took(v, at)
	if len(s.queue) == 0 {
		s.busy += max(0, min(at, s.length)-max(s.waitingSince, simWarm))
	}
}

func (s *sim) open(v visit) {
	s.count++
	v.id = fmt.Sprint("r", s.count)
	switch {
	case v.again:
		s.figures.back++
		s.backKept += btoi(v.kept)
	case v.at < s.length:
		s.fresh++
		if s.oracle-v.at > simLimit {
			s.figures.oracle++
		} else {
			s.oracle = max(s.oracle, v.at)
			s.oracle += s.took(v, s.oracle)
		}
	}
	a, err := s.r.Open(context.Background(), registry.Request{
		ID: v.id, Lane: simLane, Deadline: time.Now().Add(time.Minute), Tokens: v.tokens, Bytes: 1000, Limit: simLimit, Fingerprint: v.print,
	}, registry.Drain{Engines: 1, Rate: s.reported(v.at)})
	if err != nil {
		s.t.Fatal(err)
	}
	if a.Reason == reason.OK {
		if len(s.queue) == 0 {
			s.waitingSince = v.at
		}
		s.queue = append(s.queue, v)
		s.backIn += btoi(v.again)
		s.backKept1 += btoi(v.again && v.kept)
		return
	}
	s.refused += btoi(!v.again && v.at < s.length)
	if v.left > 0 {
		v.at, v.left, v.again, v.kept = v.at+a.RetryAfter, v.left-1, true, a.Kept
		i, _ := slices.BinarySearchFunc(s.back, v, func(a, b visit) int { return int(a.at - b.at) })
		s.back = slices.Insert(s.back, i, v)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Terminal = func(id, _ string, why reason.Reason) []byte { return []byte("end " + id + " " + why.String()) }
	return cfg
}

// TestDoorSimulated holds the door to its promises; -v prints the figures of
// DESIGN.md.
func TestDoorSimulated(t *testing.T) {
	const long = 300 * time.Second
	for _, c := range []struct {
		name           string
		overload       overload
		within         float64 // least share of the admitted that start within their limit
		busy           float64 // least share of the time with work waiting
		extra          float64 // most refused beyond the oracle's
		back, backKept float64 // least admitted of the returns; of those to a kept place
	}{
		{"0.7x", overload{load: 0.7, bias: 1, length: long}, 0.99, 0, 0.01, 0, 0},
		{"0.8x", overload{load: 0.8, bias: 1, length: long}, 0.99, 0, 0.015, 0, 0},
		{"0.9x", overload{load: 0.9, bias: 1, length: long}, 0.98, 0, 0.03, 0, 0},
		{"1.5x", overload{load: 1.5, bias: 1, length: long}, 0.95, 0.95, 0.02, 0, 0},
		{"16 per second", overload{load: 16 / simCapacity, bias: 1, length: long}, 0.95, 0.95, 0.02, 0, 0},
		{"2x", overload{load: 2, bias: 1, length: long}, 0.95, 0.95, 0.02, 0, 0},
		{"2x, rate said 1.5 times too high", overload{load: 2, bias: 1.5, length: long}, 0.9, 0.95, 0.02, 0, 0},
		{"2x, rate said 0.6 of the true one", overload{load: 2, bias: 0.6, length: long}, 0.95, 0.95, 0.02, 0, 0},
		{"2x, rate never said", overload{load: 2, bias: 0, length: long}, 0.95, 0.95, 0.02, 0, 0},
		{"a minute of 1.5x, they come back", overload{load: 1.5, bias: 1, length: time.Minute, returns: 3}, 0.95, 0.95, 1, 0.9, 0.9},
		{"a minute of 2x, they come back", overload{load: 2, bias: 1, length: time.Minute, returns: 3}, 0.95, 0.95, 1, 0.75, 0.85},
		{"1.5x, they come back", overload{load: 1.5, bias: 1, length: long, returns: 3}, 0.95, 0.95, 1, 0, 0.8},
		{"2x, they come back", overload{load: 2, bias: 1, length: long, returns: 3}, 0.95, 0.95, 1, 0, 0.8},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(2) {
				f := simulate(t, c.overload, seed)
				busy := f.busy.Seconds() / (c.overload.length - simWarm).Seconds()
				t.Logf("%v; work waits %.3f of the time", f, busy)
				if got := f.within(); got < c.within {
					t.Errorf("%.3f of the admitted started within their limit, want %.3f", got, c.within)
				}
				if busy < c.busy {
					t.Errorf("work waited %.3f of the time, want %.3f", busy, c.busy)
				}
				if got := part(f.refused-f.oracle, f.fresh); got > c.extra {
					t.Errorf("%.3f refused beyond the oracle's, want at most %.3f", got, c.extra)
				}
				if got := part(f.backIn, f.back); got < c.back {
					t.Errorf("%.2f of the returns admitted, want %.2f", got, c.back)
				}
				if got := part(f.backKept1, f.backKept); got < c.backKept {
					t.Errorf("%.2f of the returns to a kept place admitted, want %.2f", got, c.backKept)
				}
			}
		})
	}
}
