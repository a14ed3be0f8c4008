//go:build e2e

package nvml

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/reason"
	"penstock/scheduler"
	"penstock/scraper"
)

// The helper and the stub are what scripts/nvml-test built. Without them these tests
// fail: they are run by that script only.
func stubbed(t *testing.T, library string) (cfg Config, steer func(string)) {
	t.Helper()
	bin, stub := os.Getenv("E2E_NVML"), os.Getenv("E2E_NVML_STUB")
	if bin == "" || stub == "" {
		t.Fatal("E2E_NVML and E2E_NVML_STUB are not set; run scripts/nvml-test")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "steer")
	steer = func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	steer("")
	path := filepath.Join(dir, helperName)
	script := fmt.Sprintf("#!/bin/sh\nexport LD_LIBRARY_PATH=%q NVMLSTUB_FILE=%q\nexec %q \"$@\"\n", filepath.Join(stub, library), file, bin)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg = DefaultConfig()
	cfg.Path, cfg.Backoff, cfg.RSSCap = path, 100*time.Millisecond, 64<<20
	cfg.GPUs = []string{"0", "1"}
	return cfg, steer
}

func detail(state State, text string) func(Sample) bool {
	return func(s Sample) bool { return s.State == state && strings.Contains(s.Detail, text) }
}

func well(s Sample) bool { return s.State == OK && s.Reason == reason.OK && len(s.GPUs) == 2 }

// TestStub: the real go-nvml over the stub library, steered while it runs.
func TestStub(t *testing.T) {
	for name, c := range map[string]struct {
		steer string
		want  func(Sample) bool
	}{
		"values": {"", func(s Sample) bool {
			if !well(s) || s.GPUs[1].SlowAt.IsZero() {
				return false
			}
			g := s.GPUs[1]
			return g.Utilization == .2 && g.MemoryUsed == 1<<30 && g.MemoryTotal == 80<<30 && g.PowerWatts == 100 &&
				g.Celsius == 41 && g.Clocks == 4 && g.Corrected == 0 && g.RowsRemapped == 1 && g.RowsPending && s.Driver == "580.00.stub"
		}},
		"new values":       {"NVMLSTUB_UTIL 77\nNVMLSTUB_USED_MIB 2048\n", func(s Sample) bool { return well(s) && s.GPUs[0].Utilization == .77 && s.GPUs[0].MemoryUsed == 2<<30 }},
		"hang":             {"NVMLSTUB_FAULT utilization:hang\n", detail(Stuck, "nvmlDeviceGetUtilizationRates does not return")},
		"missing function": {"NVMLSTUB_FAULT memory:exit\n", detail(Absent, "exit status 127")},
		"segv":             {"NVMLSTUB_FAULT power:segv\n", detail(Absent, "SIGSEGV")},
		"leak":             {"NVMLSTUB_FAULT memory:leak:8\n", detail(Absent, "above the cap")},
		"slow":             {"NVMLSTUB_FAULT memory:slow:2\n", func(s Sample) bool { return s.State == OK && s.Every == 250*time.Millisecond }},
		"lost": {"NVMLSTUB_LOST 1\n", func(s Sample) bool {
			return s.State == Lost && s.Reason == reason.GPULost && s.GPUs[0].State == OK && s.GPUs[1].State == Lost
		}},
		"MIG": {"NVMLSTUB_MIG 2\n", func(s Sample) bool {
			return s.State == MIG && s.Reason == reason.OK && s.GPUs[0].MemoryTotal == 20<<30 && s.GPUs[0].Utilization < 0
		}},
		"revoked":       {"NVMLSTUB_FAULT any:999\n", detail(Permission, "revoked")},
		"driver leaves": {"NVMLSTUB_UNBIND 1\n", detail(Absent, "all devices released")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, steer := stubbed(t, "")
			r, h, _ := newReader(t, cfg)
			stop := run(t, r)
			defer stop()
			_, at := h.await(t, 0, "before", well)
			steer(c.steer)
			_, at = h.await(t, at, name, c.want)
			steer("")
			if name != "driver leaves" { // it stays away for a minute
				h.await(t, at, "after", func(s Sample) bool { return well(s) && s.GPUs[0].Utilization == .1 })
			}
		})
	}
}

func TestStubXID(t *testing.T) {
	t.Parallel()
	cfg, steer := stubbed(t, "")
	r, h, _ := newReader(t, cfg)
	stop := run(t, r)
	defer stop()
	h.await(t, 0, "before", well)
	steer("NVMLSTUB_XID 1:31:1\n")
	for end := time.Now().Add(10 * time.Second); testutil.ToFloat64(r.metrics.xids.WithLabelValues("1", "application")) == 0; {
		if time.Now().After(end) {
			t.Fatal("the application's XID is not counted")
		}
		<-time.After(10 * time.Millisecond)
	}
	if s := r.Latest(); s.Reason != reason.OK {
		t.Errorf("an application's XID: %v, want ok", s.Reason)
	}
	steer("NVMLSTUB_XID 1:79:2\n")
	_, at := h.await(t, 0, "of a fatal XID", func(s Sample) bool { return s.Reason == reason.GPUFault && s.GPUs[1].Fault == 79 })
	r.EngineRestarted()
	h.await(t, at, "of a new engine", well)
}

// TestStubInit: the library is there and cannot be used.
func TestStubInit(t *testing.T) {
	for text, want := range map[string]func(Sample) bool{
		"4":  detail(Permission, "may not be opened"),
		"9":  detail(Absent, "driver not loaded"),
		"18": detail(Absent, "different versions"),
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			cfg, steer := stubbed(t, "")
			steer("NVMLSTUB_FAULT init:" + text + "\n")
			r, h, _ := newReader(t, cfg)
			stop := run(t, r)
			defer stop()
			h.await(t, 0, "of code "+text, want)
		})
	}
}

// TestOldDriver: functions that an old library lacks are not called.
func TestOldDriver(t *testing.T) {
	t.Parallel()
	cfg, _ := stubbed(t, "old")
	r, h, _ := newReader(t, cfg)
	stop := run(t, r)
	defer stop()
	s, _ := h.await(t, 0, "of an old driver", func(s Sample) bool { return s.State == OK && !s.GPUs[0].SlowAt.IsZero() })
	if g := s.GPUs[0]; g.MemoryUsed != 1<<30 || g.Celsius != 40 || g.Clocks != 4 || g.Corrected != -1 || g.RowsRemapped != -1 {
		t.Errorf("%+v", g)
	}
}

func TestNoLibrary(t *testing.T) {
	t.Parallel()
	cfg, _ := stubbed(t, "none")
	r, h, _ := newReader(t, cfg)
	stop := run(t, r)
	defer stop()
	h.await(t, 0, "without a library", func(s Sample) bool { return s.State == Absent && strings.Contains(s.Detail, "not found") })
}

// TestReleases: the helper ends, and so lets go of the devices, when its parent does.
func TestReleases(t *testing.T) {
	for name, text := range map[string]string{"well": "", "while a call hangs": "NVMLSTUB_FAULT memory:hang\n"} {
		t.Run(name, func(t *testing.T) {
			cfg, steer := stubbed(t, "")
			cfg.Deadline = 10 * time.Second
			r, h, _ := newReader(t, cfg)
			var c *child
			exec := r.start
			r.start = func() (_ *child, err error) { c, err = exec(); return c, err }
			stop := run(t, r)
			h.await(t, 0, "ok", is(OK))
			steer(text)
			<-time.After(200 * time.Millisecond) // a reading, or the hang, has begun
			stop()
			if !c.gone(reapWithin) {
				t.Error("the helper lives")
			}
		})
	}
}

// TestNeighbour: helpers that hang, are killed and lack functions, one after the other,
// cost the 50 ms loop of metric polls nothing and admission goes on. Windows with and
// without them take turns, so that both see the same machine. Other load on it may spoil
// a round's p99; a delay of our making spoils every round's.
func TestNeighbour(t *testing.T) {
	page, err := os.ReadFile("../testdata/running-and-waiting.txt")
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(page)
	}))
	defer engine.Close()
	faults := map[string]string{"hang": "NVMLSTUB_FAULT utilization:hang\n", "kill": "", "missing function": "NVMLSTUB_FAULT memory:exit\n"}
	for round := range 5 {
		late := map[bool][]time.Duration{}
		for name, text := range faults {
			for _, failing := range []bool{round%2 == 0, round%2 != 0} {
				if !failing {
					late[false] = append(late[false], window(t, engine.URL, nil)...)
					continue
				}
				cfg, steer := stubbed(t, "")
				cfg.Deadline = 300 * time.Millisecond
				steer(text)
				r, h, _ := newReader(t, cfg)
				if name == "kill" {
					killer(r)
				}
				late[true] = append(late[true], window(t, engine.URL, r.Run)...)
				if h.find(0, func(s Sample) bool { return !s.State.reads() }) < 0 {
					t.Errorf("%s: no helper ended", name)
				}
			}
		}
		without, with := p99(late[false]), p99(late[true])
		t.Logf("p99 lateness of the 50 ms loop: %v without, %v with failing helpers (%d and %d ticks)", without, with, len(late[false]), len(late[true]))
		if with <= without+10*time.Millisecond {
			return
		}
	}
	t.Error("p99 lateness with failing helpers is in every round more than 10 ms above that without")
}

// killer kills each helper 200 ms after its start.
func killer(r *Reader) {
	exec := r.start
	r.start = func() (*child, error) {
		c, err := exec()
		if err == nil {
			time.AfterFunc(200*time.Millisecond, c.kill)
		}
		return c, err
	}
}

// window polls the engine with 4 scrapers for 1.5 s beside the neighbour and returns by
// how much the times between two polls were above each scraper's median. Every sample
// must admit a request.
func window(t *testing.T, url string, neighbour func(context.Context) error) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	if neighbour != nil {
		all.Go(func() { _ = neighbour(ctx) })
	}
	var gaps [4][]time.Duration
	for i := range gaps {
		state, err := scheduler.New(scheduler.DefaultConfig(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var last time.Time
		cfg := scraper.DefaultConfig()
		cfg.URL = url
		s, err := scraper.New(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler), func(p scheduler.Sample) {
			now := time.Now()
			p.KV, p.Waiting, p.Running, p.Tokens = 0.1, 0, 1, float64(now.UnixNano())
			state.Observe(now, p)
			if v := state.Decide(now, &scheduler.Request{Hash: 1, PromptTokens: 10, Sequences: 1, Opened: now}); v.Action != scheduler.Start {
				t.Errorf("a request is not admitted: %v", v.Reason)
			}
			if !last.IsZero() {
				gaps[i] = append(gaps[i], p.Asked.Sub(last))
			}
			last = p.Asked
		}, func(_ time.Time, err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { _ = s.Run(ctx) })
	}
	all.Wait()
	var late []time.Duration
	for _, g := range gaps {
		slices.Sort(g)
		for _, d := range g {
			late = append(late, max(d-g[len(g)/2], 0))
		}
	}
	return late
}

func p99(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)*99/100]
}
