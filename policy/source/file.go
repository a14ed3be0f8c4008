// Package source keeps a policy current: it reads the file again when it changes,
// checks it whole and swaps it at once; what is wrong leaves the old one in force.
package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/policy"
)

// pollEvery is how often the file is read to see whether it has changed. It is at most
// policy.MaxBytes, and a mounted configuration is replaced in ways that a watch misses.
const pollEvery = 2 * time.Second

// Config says where the policy is.
type Config struct {
	Path string
	Keys *policy.Keys // of tenants, where they are in a file of their own; nil = in the policy, or there are none
}

// File is a policy in a file. Make it with New.
type File struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	current atomic.Pointer[loaded]

	mu      sync.Mutex // one reload at a time
	read    [sha256.Size]byte
	problem string // of the last reload, "" = none; guarded by mu
	changed []func(*policy.Policy)
}

type loaded struct {
	policy *policy.Policy
	at     time.Time
}

// New reads the file, which must be valid.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*File, error) {
	f := &File{cfg: cfg, log: log}
	p, sum, err := f.load()
	if err != nil {
		return nil, err
	}
	if f.metrics, err = newMetrics(reg); err != nil {
		return nil, fmt.Errorf("policy/source: %w", err)
	}
	f.read = sum
	f.current.Store(&loaded{p, time.Now()})
	f.metrics.now(p.Hash)
	return f, nil
}

// Current is the policy in force. Any goroutine may call it.
func (f *File) Current() *policy.Policy { return f.current.Load().policy }

// OnChange has changed called with each new policy, in order, while the next one
// waits. Call it before Run.
func (f *File) OnChange(changed func(*policy.Policy)) { f.changed = append(f.changed, changed) }

// Run looks for changes until ctx ends.
func (f *File) Run(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := f.reload(false); err != nil {
				line, _, _ := strings.Cut(err.Error(), "\n")
				f.log.Error("policy refused, the old one stays", "file", f.cfg.Path, "err", line)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Reload reads the file now. After an error the old policy stays in force.
func (f *File) Reload() error { return f.reload(true) }

// reload takes the file over where it has changed. What was refused before is told
// again only where somebody asked.
func (f *File) reload(asked bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, sum, err := f.load()
	if err == nil && f.Current().Authenticates() && !p.Authenticates() {
		err = fmt.Errorf("policy %s: it has no keys any more: everybody would be let in. Restart to serve without keys", f.cfg.Path)
	}
	if err != nil {
		if known := err.Error() == f.problem; known && !asked {
			return nil
		}
		f.problem = err.Error()
		f.metrics.failures.Inc()
		return err
	}
	f.problem = ""
	if sum == f.read {
		return nil
	}
	old := f.Current().Hash
	f.read = sum
	f.current.Store(&loaded{p, time.Now()})
	f.metrics.now(p.Hash)
	for _, changed := range f.changed {
		changed(p)
	}
	f.log.Info("policy changed", "file", f.cfg.Path, "hash", p.Hash, "old", old)
	return nil
}

// load reads and checks the file.
func (f *File) load() (*policy.Policy, [sha256.Size]byte, error) {
	text, err := readFile(f.cfg.Path)
	if err != nil {
		return nil, [sha256.Size]byte{}, fmt.Errorf("policy: %w", err)
	}
	sum := sha256.Sum256(text)
	if last := f.current.Load(); last != nil && sum == f.read {
		return last.policy, sum, nil
	}
	p, err := policy.Parse(text)
	if err != nil {
		return nil, sum, fmt.Errorf("%s: %w", f.cfg.Path, err)
	}
	if f.cfg.Keys != nil {
		if p.OwnKeys() {
			return nil, sum, errors.New("policy " + f.cfg.Path + ": its tenants have keys, and there is a file of keys too: keep them in one of the two")
		}
		p = p.WithKeys(f.cfg.Keys)
	}
	return p, sum, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, policy.MaxBytes+1)) // a longer one is refused by Parse
}

// State is for /debug/state.
type State struct {
	File    string  `json:"file"`
	Hash    string  `json:"hash"`
	Age     float64 `json:"age_seconds"` // since it came into force
	Problem string  `json:"problem,omitempty"`
}

// State says which policy is in force, and why the file is not. Any goroutine may call
// it.
func (f *File) State() State {
	now := f.current.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	return State{File: f.cfg.Path, Hash: now.policy.Hash, Age: time.Since(now.at).Seconds(), Problem: f.problem}
}

type metrics struct {
	info     *prometheus.GaugeVec
	failures prometheus.Counter
	shown    string // the hash of info; one reload at a time changes it
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		info:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_policy_info", Help: "The policy in force, by the hash of its file."}, []string{"hash"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_policy_reload_failures_total", Help: "Changed policies that were refused; the old one stayed in force."}),
	}
	return m, errors.Join(reg.Register(m.info), reg.Register(m.failures))
}

// now makes hash the only series of info.
func (m *metrics) now(hash string) {
	m.info.WithLabelValues(hash).Set(1)
	if m.shown != "" && m.shown != hash {
		m.info.DeleteLabelValues(m.shown)
	}
	m.shown = hash
}
