// Package nvml reads what NVIDIA's driver says of the engine's GPUs: memory and
// utilization every 50 ms, the rest every second. The library behind it can end or
// hang its process, so penstock-nvml calls it, and this package reads that process's
// lines, watches it, replaces it and goes on without it. It is pure Go. DESIGN.md
// says which failure is met where.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/reason"
)

// helperName is the binary that is looked for.
const helperName = "penstock-nvml"

// Auto and Off are values of Config.Path.
const (
	Auto = "auto" // beside this binary, else in PATH; none is no error
	Off  = "off"
)

// Config says which helper reads which GPUs.
type Config struct {
	Path string // Auto, Off, or where penstock-nvml is
	// GPUs of the engine: indices in PCI order or UUIDs, abbreviated as CUDA allows,
	// of GPUs or MIG devices. nil: this process's CUDA_VISIBLE_DEVICES, else all. CUDA
	// counts in PCI order only under CUDA_DEVICE_ORDER=PCI_BUS_ID; UUIDs are always right.
	GPUs     []string
	Deadline time.Duration // one call of the library: 100 ms to 10 s
	RSSCap   int64         // resident bytes above which the helper is replaced: at least 32 MiB
	Backoff  time.Duration // before the first restart, doubled up to MaxBackoff: 100 ms to MaxBackoff
}

// MaxBackoff is the longest pause between two helpers, and between two looks for one
// that is not there.
const MaxBackoff = time.Minute

// DefaultConfig looks for a helper and goes on without one.
func DefaultConfig() Config {
	return Config{Path: Auto, Deadline: time.Second, RSSCap: 256 << 20, Backoff: time.Second}
}

// Validate names the first field that cannot be used, its value and the remedy.
func (c *Config) Validate() error {
	switch {
	case c.Path == "":
		return fmt.Errorf("nvml: Path is empty; set %q, %q or the path of %s", Auto, Off, helperName)
	case c.Deadline < 100*time.Millisecond || c.Deadline > 10*time.Second:
		return fmt.Errorf("nvml: Deadline is %v; set 100ms to 10s", c.Deadline)
	case c.RSSCap < 32<<20:
		return fmt.Errorf("nvml: RSSCap is %d; set at least %d bytes", c.RSSCap, 32<<20)
	case c.Backoff < 100*time.Millisecond || c.Backoff > MaxBackoff:
		return fmt.Errorf("nvml: Backoff is %v; set 100ms to %v", c.Backoff, MaxBackoff)
	}
	for _, name := range c.GPUs {
		if !validName(name) {
			return fmt.Errorf("nvml: GPUs has %q; use an index or a UUID (GPU-… or MIG-…), as nvidia-smi -L shows them", name)
		}
	}
	return nil
}

// Reader runs the helper for one engine.
type Reader struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	sink    func(Sample)
	start   func() (*child, error) // a helper

	latest atomic.Pointer[Sample]
	fresh  chan struct{} // of size 1: the engine's process is new

	// The rest belongs to Run.
	view  view
	left  []<-chan struct{}  // each closes once a killed helper is really gone
	quiet map[seen]time.Time // when an XID of a GPU was logged
	told  struct {           // what was logged last
		state  State
		reason reason.Reason
	}
}

// New makes a Reader that calls sink with each Sample, on Run's goroutine: 20 times a
// second while a helper reads, and at each change. sink must not wait. reg comes with
// the labels that tell engines apart. An error means an invalid cfg, a Path that is no
// file or metrics that are registered already.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, sink func(Sample)) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Path != Auto && cfg.Path != Off {
		if _, err := exec.LookPath(cfg.Path); err != nil {
			return nil, fmt.Errorf("nvml: Path is %q: %w; set %q, %q or the path of %s", cfg.Path, err, Auto, Off, helperName)
		}
	}
	r := &Reader{cfg: cfg, log: log, sink: sink, fresh: make(chan struct{}, 1), quiet: map[seen]time.Time{}}
	r.start = r.exec
	r.view.use = selection{want: cfg.GPUs}
	if cfg.GPUs == nil {
		r.view.use = visible(os.LookupEnv("CUDA_VISIBLE_DEVICES"))
	}
	r.view.last = Sample{State: Absent, Reason: reason.OK, Detail: "not read yet"}
	r.latest.Store(&Sample{State: Absent, Reason: reason.OK, Detail: r.view.last.Detail})
	var err error
	r.metrics, err = newMetrics(reg, r.Latest)
	return r, err
}

// Latest is the last Sample; its slices must not be changed. Safe for concurrent use.
func (r *Reader) Latest() Sample { return *r.latest.Load() }

// EngineRestarted tells that the engine's process is new and serves: a fault or loss
// before it does not concern it. Safe for concurrent use; it does not wait.
func (r *Reader) EngineRestarted() {
	select {
	case r.fresh <- struct{}{}:
	default:
	}
}

// Run keeps a helper running until ctx ends and returns nil. What it leaves behind is
// at most a goroutine for each of maxLeft helpers that the kernel cannot end.
func (r *Reader) Run(ctx context.Context) error {
	if r.cfg.Path == Off {
		r.gone(Absent, "off by configuration")
		r.wait(ctx, nil)
		return nil
	}
	for pause := r.cfg.Backoff; ; pause = min(2*pause, MaxBackoff) {
		began := time.Now()
		c := r.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		r.metrics.restarts[c].Inc()
		if time.Since(began) >= MaxBackoff {
			pause = r.cfg.Backoff
		}
		if !r.wait(ctx, time.After(max(pause, c.least()))) {
			return nil
		}
	}
}

// wait reports whether timer fired before ctx ended.
func (r *Reader) wait(ctx context.Context, timer <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer:
			return true
		case <-r.fresh:
			r.recovered()
		}
	}
}

// find is where the helper is now: it may be installed or replaced later.
func (r *Reader) find() (string, error) {
	if r.cfg.Path != Auto {
		return r.cfg.Path, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), helperName)
		if _, err := exec.LookPath(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(helperName)
	if err != nil {
		return "", errors.New(helperName + " is neither beside this binary nor in PATH")
	}
	return path, nil
}

func (r *Reader) recovered() {
	r.view.recovered(time.Now())
	r.tell()
}

func (r *Reader) gone(state State, detail string) {
	r.view.gone(time.Now(), state, detail)
	r.tell()
}

// tell hands the view's sample on and logs what changed.
func (r *Reader) tell() {
	s := r.view.last
	r.latest.Store(&s)
	for i := range s.GPUs {
		r.metrics.meet(s.GPUs[i].Index)
	}
	if s.Reason != r.told.reason || s.State != r.told.state {
		level := slog.LevelInfo
		if s.Reason != reason.OK || s.State == Stuck {
			level = slog.LevelWarn
		}
		r.log.Log(context.Background(), level, "gpu state", "state", s.State.String(), "was", r.told.state.String(),
			"reason", s.Reason.String(), "detail", s.Detail, "gpus", len(s.GPUs), "driver", s.Driver)
		r.told.state, r.told.reason = s.State, s.Reason
	}
	r.sink(s)
}
