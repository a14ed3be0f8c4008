package main

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"penstock/scraper/nvml/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a library of two GPUs that behaves as its fields say.
type fake struct {
	calls *calls
	code  int  // of init
	none  bool // there is no GPU
	reads func(n int64) (code int, takes time.Duration)
	xids  []wire.XID // with the first events
	leave int64      // the n-th look at events tells that a driver leaves

	n, looks atomic.Int64
	slows    [2]atomic.Int64
	shut     atomic.Bool
	free     chan struct{} // ends a hanging call
}

func (f *fake) init() int { return f.calls.do("nvmlInit", initWithin, func() int { return f.code }) }

func (f *fake) gpus() ([]wire.GPU, int) {
	if f.none {
		return nil, success
	}
	return []wire.GPU{wire.NewGPU(0, "GPU-a"), wire.NewGPU(1, "GPU-b")}, success
}
func (f *fake) driver() string    { return "1" }
func (f *fake) missing() []string { return []string{"nvmlX"} }
func (f *fake) slow(g *wire.GPU)  { f.slows[g.I].Add(1) }
func (f *fake) shutdown()         { f.shut.Store(true) }

func (f *fake) fast(g *wire.GPU) {
	g.Code = f.calls.do("read", 0, func() int {
		code, takes := f.reads(f.n.Add(1))
		if takes < 0 {
			<-f.free
			return code
		}
		time.Sleep(takes)
		return code
	})
}

func (f *fake) events() ([]wire.XID, bool) {
	xids := f.xids
	f.xids = nil
	return xids, f.looks.Add(1) == f.leave
}

func well(int64) (int, time.Duration) { return success, 0 }

// play runs write with f until it ends, or is told to after the given time.
func play(t *testing.T, f *fake, d time.Duration) (lines []wire.Line, status int) {
	t.Helper()
	f.free = make(chan struct{})
	out, in := io.Pipe()
	stop, ended := make(chan struct{}), make(chan int, 1)
	go func() {
		ended <- write(in, func(c *calls) library { f.calls = c; return f }, time.Second, stop)
		close(f.free)
		_ = in.Close()
	}()
	timer := time.AfterFunc(d, func() { close(stop) })
	defer func() {
		if timer.Stop() {
			close(stop) // a sampler that outlives its end; the process would be gone
		}
	}()
	for s := bufio.NewScanner(out); s.Scan(); {
		l, err := wire.Parse(s.Bytes())
		if err != nil {
			t.Errorf("%s: %v", s.Text(), err)
		}
		if want := uint64(len(lines) + 1); l.Seq != want {
			t.Errorf("line %d, want %d", l.Seq, want)
		}
		lines = append(lines, l)
	}
	return lines, <-ended
}

func TestWrite(t *testing.T) {
	for name, c := range map[string]struct {
		lib    *fake
		status int
		end    wire.End
		code   int
		call   string
		shut   bool
	}{
		"told to end":      {&fake{reads: well}, 0, "", 0, "", true},
		"no library":       {&fake{code: 12}, 1, wire.EndInit, 12, "", false},
		"no GPU":           {&fake{none: true}, 1, wire.EndInit, gpuNotFound, "", false},
		"a call hangs":     {&fake{reads: func(n int64) (int, time.Duration) { return 0, time.Duration(min(0, 20-n)) }}, 3, wire.EndHang, 0, "read", false},
		"a driver leaves":  {&fake{reads: well, leave: 3}, 0, wire.EndUnbind, 0, "", true},
		"access revoked":   {&fake{reads: func(n int64) (int, time.Duration) { return map[bool]int{true: unknownError}[n > 20], 0 }}, 1, wire.EndCalls, unknownError, "", false},
		"one GPU is lost":  {&fake{reads: func(n int64) (int, time.Duration) { return int(15 * (n % 2)), 0 }}, 0, "", 0, "", true},
		"one has no right": {&fake{reads: func(n int64) (int, time.Duration) { return int(noPermission * (n % 2)), 0 }}, 0, "", 0, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines, status := play(t, c.lib, 10*time.Second)
				last := lines[len(lines)-1]
				got := []any{status, last.End, last.Code, last.Call, c.lib.shut.Load()}
				if diff := cmp.Diff([]any{c.status, c.end, c.code, c.call, c.shut}, got); diff != "" {
					t.Errorf("status, end, code, call, shut down (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestRhythm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		xids := make([]wire.XID, wire.MaxXIDs+3)
		f := &fake{reads: well, xids: xids}
		lines, _ := play(t, f, 10*time.Second)
		if n := len(lines); n < 195 || n > 225 {
			t.Errorf("%d lines in 10 s, want 200 readings and few heartbeats", n)
		}
		for i := range f.slows {
			if n := f.slows[i].Load(); n < 9 || n > 11 {
				t.Errorf("GPU %d read slowly %d times in 10 s, want 10", i, n)
			}
		}
		if n := f.looks.Load(); n < 9 || n > 11 {
			t.Errorf("%d looks at events in 10 s, want 10", n)
		}
		told, missing := 0, 0
		for _, l := range lines {
			told += len(l.XIDs)
			missing += len(l.Missing)
		}
		if told != len(xids) || missing != 1 {
			t.Errorf("%d XIDs and %d missing functions told, want %d and 1", told, missing, len(xids))
		}
	})
}

// TestSlowDriver: a driver whose calls pass 1 ms is asked every 250 ms, until it has
// been fast for a while.
func TestSlowDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &fake{reads: func(int64) (int, time.Duration) {
			if time.Since(start) < 20*time.Second {
				return success, 2 * time.Millisecond
			}
			return success, 0
		}}
		lines, _ := play(t, f, 3*time.Minute)
		var changes []time.Duration
		for i, l := range lines {
			if l.Every > 0 && (i == 0 || l.Every != lines[i-1].Every) {
				changes = append(changes, l.Every)
			}
		}
		if diff := cmp.Diff([]time.Duration{often, seldom, often}, changes); diff != "" {
			t.Errorf("readings every (-want +got):\n%s", diff)
		}
		if got := lines[len(lines)-1].Widened; got != 1 {
			t.Errorf("widened %d times, want 1", got)
		}
	})
}

// TestSlowCallsKeepTalking: calls below their deadline that add up to more than a
// reader's patience are no silence.
func TestSlowCallsKeepTalking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, status := play(t, &fake{reads: func(int64) (int, time.Duration) { return success, 900 * time.Millisecond }}, 10*time.Second)
		if status != 0 {
			t.Errorf("status %d, want 0", status)
		}
		for i := 1; i < len(lines); i++ {
			if gap := lines[i].Up - lines[i-1].Up; gap > heartbeat {
				t.Errorf("%v without a line, want %v at most", gap, heartbeat)
			}
		}
	})
}

func TestMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(5*time.Second, func() { close(stop) })
		f := &fake{reads: func(int64) (int, time.Duration) { return success, 3 * time.Microsecond }}
		var out bytes.Buffer
		status := measure(&out, func(c *calls) library { f.calls = c; return f }, time.Second, stop)
		for _, want := range []string{"2 GPUs", "every 50ms", "lacks: nvmlX", "3µs  3µs  3µs  read"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in:\n%s", want, out.String())
			}
		}
		if status != 0 {
			t.Errorf("status %d, want 0", status)
		}
	})
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--no-such"}, {"argument"}, {"--deadline", "0s"}, {"--check", "-1s"}} {
		if got := run(args, nil); got != 2 {
			t.Errorf("run(%q) = %d, want 2", args, got)
		}
	}
}
