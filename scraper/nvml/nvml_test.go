package nvml

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/reason"
	"penstock/scraper/nvml/wire"
)

func fastConfig(path string) Config {
	cfg := DefaultConfig()
	cfg.Path, cfg.GPUs, cfg.Backoff, cfg.RSSCap = path, []string{"0"}, 100*time.Millisecond, 96<<20
	return cfg
}

func run(t *testing.T, r *Reader) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func is(state State) func(Sample) bool { return func(s Sample) bool { return s.State == state } }

// TestHelperFaults: whatever a helper does, it is replaced and the reason is told.
func TestHelperFaults(t *testing.T) {
	for how, want := range map[string]struct {
		state  State
		detail string
		cause  cause
	}{
		"exit":    {Absent, "helper ended: exit status 127: symbol lookup error: undefined symbol: nvmlX", exited},
		"crash":   {Absent, "helper ended: exit status 2: SIGSEGV: segmentation violation", exited},
		"garbage": {Absent, "helper: not a line of penstock-nvml", garbage},
		"huge":    {Absent, "helper: read: bufio.Scanner: token too long", garbage},
		"hang":    {Stuck, "NVML call nvmlDeviceGetUtilizationRates does not return", hung},
		"leak":    {Absent, "helper uses ", fat},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r, h, _ := newReader(t, fastConfig(helper(t, how)))
			stop := run(t, r)
			defer stop()
			_, i := h.await(t, 0, "ok", is(OK))
			s, i := h.await(t, i, "after the fault", func(s Sample) bool { return !s.State.reads() })
			if s.State != want.state || !strings.HasPrefix(s.Detail, want.detail) || s.Reason != reason.OK {
				t.Errorf("state %v, reason %v, detail %q; want %v, ok, %q", s.State, s.Reason, s.Detail, want.state, want.detail)
			}
			h.await(t, i, "of the next helper", is(OK))
			if got := testutil.ToFloat64(r.metrics.restarts[want.cause]); got < 1 {
				t.Errorf("restarts by %s: %v, want 1 or more", causes[want.cause], got)
			}
		})
	}
}

func TestKilledHelperIsReplaced(t *testing.T) {
	t.Parallel()
	r, h, _ := newReader(t, fastConfig(helper(t, "good")))
	stop := run(t, r)
	defer stop()
	s, i := h.await(t, 0, "ok", is(OK))
	var pid int
	if _, err := fmt.Sscanf(s.Driver, "pid %d", &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, i = h.await(t, i, "of its end", is(Absent))
	if next, _ := h.await(t, i, "of the next", is(OK)); next.Driver == s.Driver {
		t.Errorf("still %s", s.Driver)
	}
}

// TestEnd: a helper ends with its Reader, also one that must be killed.
func TestEnd(t *testing.T) {
	for _, how := range []string{"good", "deaf"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r, h, _ := newReader(t, fastConfig(helper(t, how)))
			stop := run(t, r)
			s, _ := h.await(t, 0, "ok", is(OK))
			stop()
			var pid int
			if _, err := fmt.Sscanf(s.Driver, "pid %d", &pid); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); err == nil {
				t.Errorf("helper %d lives", pid)
			}
		})
	}
}

func TestUnusableLibrary(t *testing.T) {
	t.Parallel()
	r, h, reg := newReader(t, fastConfig(helper(t, "init")))
	stop := run(t, r)
	s, _ := h.await(t, 0, "of the failure", func(s Sample) bool { return s.Detail == "driver not loaded" })
	stop()
	if s.State != Absent || s.Reason != reason.OK {
		t.Errorf("state %v, reason %v; want absent, ok", s.State, s.Reason)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

func TestNoHelper(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cfg := fastConfig(Auto)
	r, h, _ := newReader(t, cfg)
	if r.Latest().State != Absent {
		t.Errorf("before Run: %v, want absent", r.Latest().State)
	}
	stop := run(t, r)
	s, _ := h.await(t, 0, "that says so", is(Absent))
	stop()
	if !strings.Contains(s.Detail, "neither beside this binary nor in PATH") {
		t.Errorf("detail %q", s.Detail)
	}
	cfg.Path = "/no/such/helper"
	if _, err := New(cfg, r.log, nil, h.sink); err == nil || !strings.Contains(err.Error(), cfg.Path) {
		t.Errorf("New with Path %q: %v, want an error that names it", cfg.Path, err)
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":         func(*Config) {},
		"Path":     func(c *Config) { c.Path = "" },
		"Deadline": func(c *Config) { c.Deadline = time.Minute },
		"RSSCap":   func(c *Config) { c.RSSCap = 1 },
		"Backoff":  func(c *Config) { c.Backoff = 0 },
		"GPUs":     func(c *Config) { c.GPUs = []string{"all"} },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), "nvml: "+want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// fake is a child without a process.
func fake(exits bool) *child {
	c := &child{lines: make(chan wire.Line), broken: make(chan error, 1), exited: make(chan struct{})}
	c.hangUp, c.close, c.rss, c.last = func() {}, func() {}, func() int64 { return 0 }, func() string { return "gone" }
	var killed atomic.Bool
	c.kill = func() {
		if exits && !killed.Swap(true) {
			close(c.exited)
		}
	}
	return c
}

// bubble runs a Reader over start for some time.
func bubble(t *testing.T, start func(n int) (*child, error), then func(r *Reader, h *heard, at *[]time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.GPUs = []string{"0"}
		r, h, _ := newReader(t, cfg)
		var at []time.Duration
		began := time.Now()
		r.start = func() (*child, error) {
			at = append(at, time.Since(began))
			return start(len(at))
		}
		stop := run(t, r)
		then(r, h, &at)
		stop()
	})
}

func TestBackoff(t *testing.T) {
	ends := func(l wire.Line) func(int) (*child, error) {
		return func(int) (*child, error) {
			c := fake(true)
			go func() { c.lines <- l }()
			return c, nil
		}
	}
	sec := func(n ...int) (d []time.Duration) {
		for _, s := range n {
			d = append(d, time.Duration(s)*time.Second)
		}
		return d
	}
	for name, c := range map[string]struct {
		start func(int) (*child, error)
		want  []time.Duration
	}{
		"exits": {func(int) (*child, error) {
			c := fake(true)
			c.broken <- io.EOF
			return c, nil
		}, sec(0, 1, 3, 7, 15, 31, 63, 123, 183)},
		"missing":  {func(int) (*child, error) { return nil, os.ErrNotExist }, sec(0, 60, 120, 180)},
		"unusable": {ends(wire.Line{End: wire.EndInit, Code: driverNotLoaded}), sec(0, 5, 10, 15, 23, 39, 71, 131, 191)},
		"unbound":  {ends(wire.Line{End: wire.EndUnbind}), sec(0, 60, 120, 180)},
		"silent":   {func(int) (*child, error) { return fake(true), nil }, sec(0, 11, 23, 37, 55, 81, 123, 193)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.start, func(_ *Reader, _ *heard, at *[]time.Duration) {
				<-time.After(195 * time.Second)
				synctest.Wait()
				if diff := cmp.Diff(c.want, *at); diff != "" {
					t.Errorf("helpers start at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestUnkillable: helpers that hang in the kernel are left, a few; nobody waits.
func TestUnkillable(t *testing.T) {
	var all []*child
	start := func(int) (*child, error) {
		c := fake(false)
		all = append(all, c)
		go func() { c.lines <- wire.Line{End: wire.EndHang, Call: "x"} }()
		return c, nil
	}
	bubble(t, start, func(r *Reader, _ *heard, at *[]time.Duration) {
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if len(*at) != maxLeft {
			t.Errorf("%d helpers started, want %d", len(*at), maxLeft)
		}
		if s := r.Latest(); s.State != Stuck || !strings.Contains(s.Detail, "cannot be ended") {
			t.Errorf("state %v, %q; want stuck", s.State, s.Detail)
		}
		close(all[0].exited)
		<-time.After(MaxBackoff)
		synctest.Wait()
		if len(*at) != maxLeft+1 {
			t.Errorf("%d helpers started after one is gone, want %d", len(*at), maxLeft+1)
		}
	})
}

// TestReading follows one helper: widening, XIDs, a fault, a new engine, a lost GPU.
func TestReading(t *testing.T) {
	var c *child
	bubble(t, func(int) (*child, error) { c = fake(true); return c, nil }, func(r *Reader, _ *heard, _ *[]time.Duration) {
		began := time.Now()
		send := func(l *wire.Line) Sample {
			l.Up = time.Since(began) + 2*time.Second
			c.lines <- *l
			synctest.Wait()
			return r.Latest()
		}
		synctest.Wait()
		l := line(gpu(0, "GPU-a"))
		l.Every, l.Widened = 250*time.Millisecond, 1
		if s := send(l); s.State != OK || s.Every != 250*time.Millisecond {
			t.Errorf("state %v, every %v; want ok, 250ms", s.State, s.Every)
		}
		send(l)
		if got := testutil.ToFloat64(r.metrics.widened); got != 1 {
			t.Errorf("widened %v times, want 1", got)
		}
		if s := send(with(l, wire.XID{Code: 31, Instance: -1}, wire.XID{Code: 31, Instance: -1}, wire.XID{Code: 95, Instance: -1})); s.Reason != reason.GPUFault || s.GPUs[0].Fault != 95 {
			t.Errorf("reason %v, fault %d; want gpu_fault, 95", s.Reason, s.GPUs[0].Fault)
		}
		for class, want := range map[Class]float64{Application: 2, Fatal: 1, Other: 0} {
			if got := testutil.ToFloat64(r.metrics.xids.WithLabelValues("0", class.String())); got != want {
				t.Errorf("%v XIDs: %v, want %v", class, got, want)
			}
		}
		r.EngineRestarted()
		synctest.Wait()
		if s := r.Latest(); s.Reason != reason.OK {
			t.Errorf("with a new engine: %v, want ok", s.Reason)
		}
		retries := func() float64 { return testutil.ToFloat64(r.metrics.restarts[lostRetry]) }
		for began := time.Now(); retries() == 0 && time.Since(began) < 2*lookAgain; synctest.Wait() {
			send(line(code(gpu(0, "GPU-a"), gpuIsLost)))
			<-time.After(time.Second)
		}
		if s := r.Latest(); s.Reason != reason.GPULost || retries() != 1 {
			t.Errorf("reason %v, %v restarts for a lost GPU; want gpu_lost, 1", s.Reason, retries())
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.GPUs = []string{"0", "1"}
		r, _, reg := newReader(t, cfg)
		g, b := gpu(0, "GPU-a"), gpu(1, "GPU-b")
		g.Slow, g.Milliwatts, g.Celsius, g.Clocks, g.Corrected, g.Uncorrected, g.RowsRemapped = time.Second, 300_500, 55, 0x24, 7, 1, 0
		r.view.line(time.Now(), line(g, code(b, gpuIsLost)))
		r.tell()
		// The lost one's index goes to another: still one series each.
		r.view.line(time.Now(), line(g, gpu(1, "GPU-c")))
		r.tell()
		want := `
# HELP penstock_gpu_power_watts Power draw.
# TYPE penstock_gpu_power_watts gauge
penstock_gpu_power_watts{gpu="0"} 300.5
# HELP penstock_gpu_utilization_ratio Part of the last 1/6 to 1 s in which any kernel ran.
# TYPE penstock_gpu_utilization_ratio gauge
penstock_gpu_utilization_ratio{gpu="0"} 0.5
penstock_gpu_utilization_ratio{gpu="1"} 0.5
# HELP penstock_gpu_ecc_errors_total ECC errors since the driver was loaded.
# TYPE penstock_gpu_ecc_errors_total counter
penstock_gpu_ecc_errors_total{gpu="0",kind="corrected"} 7
penstock_gpu_ecc_errors_total{gpu="0",kind="uncorrected"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "penstock_gpu_power_watts", "penstock_gpu_utilization_ratio", "penstock_gpu_ecc_errors_total"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		r.gone(Stuck, "x")
		if n, err := testutil.GatherAndCount(reg, "penstock_gpu_utilization_ratio"); n != 0 || err != nil {
			t.Errorf("%d utilization series while stuck (%v), want none", n, err)
		}
	})
}

func TestEnviron(t *testing.T) {
	got := environ([]string{"PATH=/bin", "PENSTOCK_REDIS_PASSWORD=x", "LD_BIND_NOW=1", "CUDA_VISIBLE_DEVICES=0"})
	if diff := cmp.Diff([]string{"PATH=/bin", "CUDA_VISIBLE_DEVICES=0"}, got); diff != "" {
		t.Error(diff)
	}
}
