package nvml

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"penstock/scraper/nvml/wire"
)

// TestMain lets this binary be a helper, too: one that behaves as FAKE_HELPER says.
func TestMain(m *testing.M) {
	if how := os.Getenv("FAKE_HELPER"); how != "" {
		os.Exit(fakeHelper(how))
	}
	goleak.VerifyTestMain(m)
}

func fakeHelper(how string) int {
	start, seq := time.Now(), uint64(0)
	put := func(l wire.Line) {
		seq++
		l.V, l.Seq, l.Up = wire.Version, seq, time.Since(start)
		text, err := json.Marshal(l)
		if err == nil {
			_, err = fmt.Printf("%s\n", text)
		}
		if err != nil {
			os.Exit(1)
		}
	}
	good := func() {
		g := wire.NewGPU(0, "GPU-fake")
		g.At, g.Used, g.Total, g.Util = time.Since(start), 1, 2, 3
		put(wire.Line{Every: 50 * time.Millisecond, Driver: fmt.Sprint("pid ", os.Getpid()), GPUs: []wire.GPU{g}})
	}
	good()
	switch how {
	case "exit":
		fmt.Fprintln(os.Stderr, "symbol lookup error: undefined symbol: nvmlX\nmore")
		return 127
	case "crash":
		fmt.Fprint(os.Stderr, "SIGSEGV: segmentation violation\n", strings.Repeat("goroutine 1\n", 100_000))
		return 2
	case "garbage":
		fmt.Println("hello")
	case "huge":
		fmt.Println(strings.Repeat("x", 4*wire.MaxLine))
	case "init":
		put(wire.Line{End: wire.EndInit, Code: driverNotLoaded})
		return 1
	case "hang": // and cannot even end
		put(wire.Line{End: wire.EndHang, Call: "nvmlDeviceGetUtilizationRates"})
		select {}
	case "deaf": // ends only when killed
		for range time.Tick(20 * time.Millisecond) {
			good()
		}
	case "leak":
		fat := make([]byte, 128<<20)
		for i := range fat {
			fat[i] = 1
		}
		defer func() { fat[0] = 2 }()
	}
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			good()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// helper is an executable that makes this binary a helper.
func helper(t *testing.T, how string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), helperName)
	script := fmt.Sprintf("#!/bin/sh\nFAKE_HELPER=%s exec %q \"$@\"\n", how, self)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// heard collects Samples.
type heard struct {
	mu  sync.Mutex // guards all
	all []Sample
}

func (h *heard) sink(s Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, s)
}

// find is the first sample from the i-th on that is ok; -1: none yet.
func (h *heard) find(i int, ok func(Sample) bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ; i < len(h.all); i++ {
		if ok(h.all[i]) {
			return i
		}
	}
	return -1
}

// await waits for the first sample from the i-th on that is ok.
func (h *heard) await(t *testing.T, i int, what string, ok func(Sample) bool) (Sample, int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if n := h.find(i, ok); n >= 0 {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.all[n], n
		}
		<-time.After(5 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last := "none at all"
	if n := len(h.all); n > 0 {
		last = fmt.Sprintf("%+v", h.all[n-1])
	}
	t.Fatalf("no sample %s; of %d the last is %s", what, len(h.all), last)
	return Sample{}, 0
}

func newReader(t *testing.T, cfg Config) (*Reader, *heard, *prometheus.Registry) {
	t.Helper()
	h, reg := &heard{}, prometheus.NewPedanticRegistry()
	r, err := New(cfg, slog.New(slog.DiscardHandler), reg, h.sink)
	if err != nil {
		t.Fatal(err)
	}
	return r, h, reg
}
