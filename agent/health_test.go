package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/reason"
	"penstock/registry"
	"penstock/vllm"
)

// TestEngineFaults: each takes health down and the lanes away, and ends without a
// restart.
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
		onStage(t, tc.name, func(t *testing.T, n *node) {
			if tc.work {
				n.streams(tenant("other"))
				n.level(0.1)
			}
			from := time.Now()
			n.fake.set(tc.fault)
			n.until("not ready", func() bool { return !n.agent.Health().Ready })
			if took := time.Since(from); took > tc.within || n.agent.Health().Reason != tc.want {
				t.Errorf("not ready: got %v after %v, want %v within %v", n.agent.Health().Reason, took, tc.want, tc.within)
			}
			time.Sleep(3 * time.Second)
			if n.agent.State(time.Now()).Taking {
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
			n.serves(m)
		})
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
