package agent

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/scheduler"
	"penstock/scraper"
	"penstock/vllm"
)

func TestPulse(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	type step struct {
		at              float64
		c               reason.Reason
		sample          bool
		serving, taking bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"up after three good samples, lanes with the first", []step{
			{0, reason.Starting, false, false, false},
			{1, reason.OK, true, false, true},
			{1.05, reason.OK, true, false, true},
			{1.1, reason.OK, true, true, true},
		}},
		{"down at once, lanes given up after two seconds", []step{
			{0, reason.OK, true, false, true},
			{.1, reason.OK, true, false, true},
			{.2, reason.OK, true, true, true},
			{1, reason.Stale, false, true, true},
			{2, reason.Blind, false, false, true},
			{4, reason.Blind, false, false, true},
			{4.1, reason.Blind, false, false, false},
			{5, reason.OK, true, false, true},
		}},
		{"another bad condition does not start anew", []step{
			{0, reason.OK, true, false, true},
			{1, reason.Stuck, true, false, true},
			{2, reason.Blind, false, false, true},
			{3.1, reason.Blind, false, false, false},
		}},
		{"draining is at once", []step{
			{0, reason.OK, true, false, true},
			{1, reason.Draining, false, false, false},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := pulse{leaveAfter: DefaultConfig().LeaveAfter}
			for _, s := range tc.steps {
				h.look(at(s.at), s.c)
				if s.sample {
					h.sample()
				}
				if h.serving() != s.serving || h.taking != s.taking {
					t.Errorf("at %vs, %v: got serving %v, taking %v, want %v, %v", s.at, s.c, h.serving(), h.taking, s.serving, s.taking)
				}
			}
		})
	}
}

// TestEngineFaults: each takes health down and the lanes away, and ends without a
// restart.
func TestLanesAreLeftAtOnce(t *testing.T) {
	h, now := pulse{}, time.Unix(1000, 0)
	h.look(now, reason.OK)
	if h.look(now, reason.Stale); !h.taking {
		t.Error("stale: lanes given up, want kept")
	}
	if h.look(now, reason.Blind); h.taking {
		t.Error("blind with a LeaveAfter of 0: lanes kept, want given up")
	}
}

func TestEngineFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  func(*fakeEngine)
		mend   func(*fakeEngine)
		work   bool // something runs
		within time.Duration
		want   reason.Reason
		why    string // 3 s after
	}{
		{"page away", func(f *fakeEngine) { f.away = true }, func(f *fakeEngine) { f.away = false }, false, 1200 * time.Millisecond, reason.Blind, "blind 3 s: page away"},
		{"asleep", func(f *fakeEngine) { f.sample.Asleep = true }, func(f *fakeEngine) { f.sample.Asleep = false }, false, 100 * time.Millisecond, reason.Asleep, "asleep 3 s"},
		{"hung", func(f *fakeEngine) { f.still = true }, func(f *fakeEngine) { f.still = false }, true, 6 * time.Second, reason.Stuck, "stuck 3 s: 4 running, 0 waiting, nothing moves"},
		{
			"restarted with another model", func(f *fakeEngine) { f.away = true },
			func(f *fakeEngine) {
				f.away, f.sample.Restarted, f.sample.Steps, f.models = false, true, 0, []vllm.Model{{ID: "r"}}
			}, false, 1200 * time.Millisecond, reason.Blind, "blind 3 s: page away",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStage(t).run()
				if tc.work {
					n.send(n.message(4, tenant("other")))
					c := <-n.fake.calls
					c.token(1)
					n.level(0.1)
				}
				from := time.Now()
				n.fake.set(tc.fault)
				n.until("not ready", func() bool { return !n.agent.Health().Ready })
				if took := time.Since(from); took > tc.within || n.agent.Health().Reason != tc.want {
					t.Errorf("not ready: got %v after %v, want %v within %v", n.agent.Health().Reason, took, tc.want, tc.within)
				}
				time.Sleep(3 * time.Second)
				if n.agent.state(time.Now(), 0).Taking {
					t.Error("lanes: got taken 3 s later, want given up")
				}
				if h := n.agent.Health(); h.Why(time.Now()) != tc.why {
					t.Errorf("why: got %q, want %q", h.Why(time.Now()), tc.why)
				}
				if e := n.directory(); e.State != tc.want || e.Why(time.Now()) != tc.why {
					t.Errorf("directory: got %v, %q; want %v, %q", e.State, e.Why(time.Now()), tc.want, tc.why)
				}
				mended := time.Now()
				n.fake.set(tc.mend)
				n.until("ready", func() bool { return n.agent.Health().Ready })
				if took := time.Since(mended); took > 250*time.Millisecond {
					t.Errorf("ready after %v, want three samples", took)
				}
				models := n.fake.models
				n.until("models", func() bool { return slices.Equal(n.agent.Health().Models, []string{models[0].ID}) })
				m := n.message(4)
				m.Lane.Model = models[0].ID
				n.send(m)
				c := <-n.fake.calls
				c.token(1)
				c.done()
				if e := n.outcome(m.ID); e.Kind != response.Done {
					t.Errorf("request after it: got %+v, want done", e)
				}
			})
		})
	}
}

// TestBrief: what went wrong, on one line, without the engine's address.
func TestBrief(t *testing.T) {
	_, refused := net.Dial("tcp", "127.0.0.1:1")
	get := func(err error) error { return &url.Error{Op: "Get", URL: "http://gpu1:8000/metrics", Err: err} }
	for want, err := range map[string]error{
		"":                   nil,
		"connection refused": &scraper.Error{Problem: scraper.Unreachable, Err: refused},
		"no answer in time":  &scraper.Error{Problem: scraper.Timeout, Err: get(context.DeadlineExceeded)},
		"missing_name vllm:kv_cache_usage_perc: not on the page": &scraper.Error{Problem: scraper.Missing, Name: "vllm:kv_cache_usage_perc", Err: errors.New("not on\nthe page")},
		"its API answers 401":    &vllm.Error{Reason: reason.EngineDown, Status: 401, Err: errors.New("http://gpu1:8000/v1/models: status 401: key")},
		"no such host":           &vllm.Error{Err: get(errors.New("no such host"))},
		strings.Repeat("x", 120): errors.New(strings.Repeat("x", 1000)),
	} {
		if got := brief(err); got != want {
			t.Errorf("brief(%v) = %q, want %q", err, got, want)
		}
	}
}

func (n *node) directory() registry.Engine {
	n.t.Helper()
	synctest.Wait()
	list, err := n.reg.Engines(context.Background())
	check(n.t, err)
	if len(list) != 1 {
		n.t.Fatalf("directory: got %d engines, want 1", len(list))
	}
	return list[0]
}

// TestNoModels: an engine that does not say what it serves gets nothing.
func TestNoModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t)
		n.fake.models = nil
		n.start()
		time.Sleep(5 * time.Second)
		if h := n.agent.Health(); h.Ready || h.Reason != reason.Starting || n.directory().State != reason.Starting || h.Why(time.Now()) != "starting: no models" {
			t.Errorf("health: got %+v, directory %+v, want starting, for want of models", h, n.directory())
		}
		n.fake.set(func(f *fakeEngine) { f.models = []vllm.Model{{ID: "b", MaxModelLen: 100}, {ID: "a", MaxModelLen: 200}} })
		n.until("ready", func() bool { return n.agent.Health().Ready })
		if e := n.directory(); e.MaxModelLen != 200 || !slices.Equal(e.Models, []string{"a", "b"}) || e.State != reason.OK {
			t.Errorf("directory: got %+v, want a and b, 200 tokens, ok", e)
		}
	})
}

// TestPlainOfBlindEngine: nobody can see that a plain request advances; after the
// stall limit without a sample it is given back.
func TestPlainOfBlindEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStage(t).run()
		n.send(n.message(4, plain))
		c := <-n.fake.calls
		from := time.Now()
		n.fake.set(func(f *fakeEngine) { f.away = true })
		<-c.ctx.Done()
		if took := time.Since(from); took < vllm.StallLimit || took > vllm.StallLimit+2*time.Second {
			t.Errorf("cut after %v, want %v", took, vllm.StallLimit)
		}
		synctest.Wait()
		if got := n.store.calls(); !slices.Equal(got, []string{"release blameless=false"}) {
			t.Errorf("record: got %q, want a release", got)
		}
	})
}

// TestFreed: the gauges show that an aborted request has left the engine.
func TestFreed(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	sample := func(ms, running int) scheduler.Sample { return scheduler.Sample{At: at(ms), Running: running} }
	for _, tc := range []struct {
		name    string
		closed  []int
		before  scheduler.Sample
		samples []scheduler.Sample
		running int // here
		want    int
	}{
		{"gauge falls", []int{10}, sample(0, 9), []scheduler.Sample{sample(50, 8)}, 2, 1},
		{"gauge stays", []int{10}, sample(0, 9), []scheduler.Sample{sample(50, 9), sample(100, 9)}, 2, 0},
		{"fell before the close", []int{60}, sample(0, 9), []scheduler.Sample{sample(50, 8)}, 2, 0},
		{"more fall than closed", []int{10, 20}, sample(0, 9), []scheduler.Sample{sample(50, 3)}, 2, 2},
		{"no more than run here", []int{10, 20, 30}, sample(0, 2), []scheduler.Sample{sample(50, 2)}, 2, 3},
		{"too late", []int{10}, sample(0, 9), []scheduler.Sample{sample(20_000, 8)}, 2, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w abortWatch
			for _, ms := range tc.closed {
				w.add(at(ms))
			}
			got, before := 0, tc.before
			for _, s := range tc.samples {
				got += w.observe(before, s, tc.running)
				before = s
			}
			if got != tc.want {
				t.Errorf("freed: got %d, want %d", got, tc.want)
			}
		})
	}
	var w abortWatch
	for i := range 2 * watched {
		w.add(at(i))
	}
	if len(w.closed) != watched {
		t.Errorf("watched: got %d, want the bound %d", len(w.closed), watched)
	}
}
