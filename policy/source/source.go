// Package source keeps a policy current: it reads its text again when it changes,
// checks it whole and swaps it at once; what is wrong leaves the old one in force. The
// text lies in a Place: a File, a key in Redis, an entry of Nacos. sourcetest holds what
// all three have in common.
package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/policy"
	"penstock/policy/apikey"
)

// readWithin bounds one read of a place.
const readWithin = 2 * time.Second

// Errors of places.
var (
	// ErrAbsent says that a place answers and has no text.
	ErrAbsent = errors.New("there is no policy")
	// ErrChanged says that a text was not replaced, since it is not the one expected.
	ErrChanged = errors.New("somebody has changed it meanwhile")
)

// Place is where the text of a policy lies. Its calls come one at a time, but for
// Watch, during which it is read.
type Place interface {
	// String names it, without secrets.
	String() string
	// Read is the whole text, or of a longer one more than policy.MaxBytes of it.
	Read(ctx context.Context) ([]byte, error)
	// Watch calls look whenever the text may have changed, and now and then without,
	// until ctx ends.
	Watch(ctx context.Context, look func())
}

// Config says how to read a policy.
type Config struct {
	Keys     *apikey.Keys   // of tenants, where they are in a file of their own; nil = in the policy, or there are none
	NeedKeys bool           // a policy without keys is refused
	Without  *policy.Policy // stands in, as Missing, until the place has answered; nil = New fails without a valid one
	Optional bool           // a place that never had a text is no problem: Without is in force then
}

// Source is the policy in force. Make it with New.
type Source struct {
	cfg     Config
	place   Place
	log     *slog.Logger
	metrics *metrics
	changed []func(*policy.Policy)

	current atomic.Pointer[loaded]
	trouble atomic.Pointer[fault] // of the last look; nil = none
	newest  atomic.Pointer[string]
	known   atomic.Bool // a policy was read, or it is sure that there is none

	mu   sync.Mutex // one look at a time
	read [sha256.Size]byte
}

type loaded struct {
	policy *policy.Policy
	at     time.Time
	read   bool // from the place
}

// fault is why a look changed nothing. Of one kind away or gone, later ones are the same.
type fault struct {
	kind string // "away", "gone" or "refused"
	text string
}

// New reads the place once. With Config.Without it also starts where that fails.
func New(cfg Config, place Place, log *slog.Logger, reg prometheus.Registerer) (*Source, error) {
	s := &Source{cfg: cfg, place: place, log: log}
	var err error
	if s.metrics, err = newMetrics(reg); err != nil {
		return nil, fmt.Errorf("policy/source: %w", err)
	}
	none := ""
	s.newest.Store(&none)
	if cfg.Without != nil {
		missing := *cfg.Without
		missing.Missing = true
		s.current.Store(&loaded{policy: &missing, at: time.Now()})
	}
	if _, err := s.look(context.Background(), false); err != nil && cfg.Without == nil {
		return nil, err
	}
	return s, nil
}

// Current is the policy in force. Any goroutine may call it.
func (s *Source) Current() *policy.Policy { return s.current.Load().policy }

// OnChange has changed called with each new policy, in order, while the next one
// waits. Call it before Run.
func (s *Source) OnChange(changed func(*policy.Policy)) { s.changed = append(s.changed, changed) }

// Run looks for changes until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	s.place.Watch(ctx, func() { _, _ = s.look(ctx, false) })
	return nil
}

// Reload reads the place now and says whether the policy is another one. After an
// error the old one stays in force.
func (s *Source) Reload(ctx context.Context) (changed bool, err error) { return s.look(ctx, true) }

// Ready says whether it is known who may do what, and if not why.
func (s *Source) Ready() (bool, string) {
	if s.known.Load() {
		return true, ""
	}
	if f := s.trouble.Load(); f != nil {
		line, _, _ := strings.Cut(f.text, "\n")
		return false, line
	}
	return false, "not read yet"
}

// look takes the text over where it has changed. What was told before is told again
// only where somebody asked.
func (s *Source) look(ctx context.Context, asked bool) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reading, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	text, err := s.place.Read(reading)
	switch {
	case ctx.Err() != nil && err != nil:
		return false, err // says nothing about the place
	case errors.Is(err, ErrAbsent):
		return s.absent(asked, err)
	case err != nil:
		return false, s.fail(asked, "away", fmt.Errorf("policy of %v cannot be read: %w", s.place, err))
	}
	return s.take(text, asked)
}

// absent is a place without a text, of which it says why.
func (s *Source) absent(asked bool, why error) (changed bool, err error) {
	s.setNewest("")
	now := s.current.Load()
	switch {
	case now != nil && now.read:
		return false, s.fail(asked, "gone", fmt.Errorf("policy of %v is gone: %w", s.place, why))
	case !s.cfg.Optional:
		return false, s.fail(asked, "gone", fmt.Errorf("policy of %v: %w", s.place, why))
	}
	s.mend()
	if !s.known.Swap(true) {
		s.swap(s.cfg.Without, false)
		return true, nil
	}
	return false, nil
}

// take puts a text in force, where it is right and not so already.
func (s *Source) take(text []byte, asked bool) (changed bool, err error) {
	sum := sha256.Sum256(text)
	s.setNewest(hex.EncodeToString(sum[:8]))
	old := s.current.Load()
	if old != nil && old.read && sum == s.read {
		s.mend()
		return false, nil
	}
	p, err := s.parse(text)
	if err == nil && old != nil && old.policy.Authenticates() && !p.Authenticates() {
		err = fmt.Errorf("policy %v: it has no keys any more: everybody would be let in. Restart to serve without keys", s.place)
	}
	if err != nil {
		return false, s.fail(asked, "refused", err)
	}
	s.mend()
	s.read = sum
	s.swap(p, true)
	s.known.Store(true)
	if old != nil {
		s.log.Info("policy changed", "source", s.place.String(), "hash", p.Hash, "old", old.policy.Hash)
	}
	return true, nil
}

func (s *Source) parse(text []byte) (*policy.Policy, error) {
	p, err := policy.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%v: %w", s.place, err)
	case s.cfg.Keys != nil && p.OwnKeys():
		return nil, fmt.Errorf("policy %v: its tenants have keys, and there is a file of keys too: keep them in one of the two", s.place)
	case s.cfg.Keys != nil:
		p = p.WithKeys(s.cfg.Keys)
	case s.cfg.NeedKeys && !p.OwnKeys():
		return nil, fmt.Errorf("policy %v: its tenants have no keys, and this process is reachable from other machines", s.place)
	}
	return p, nil
}

func (s *Source) swap(p *policy.Policy, read bool) {
	s.current.Store(&loaded{p, time.Now(), read})
	s.metrics.now(p.Hash)
	for _, changed := range s.changed {
		changed(p)
	}
}

// fail notes, counts and logs why nothing changed, once.
func (s *Source) fail(asked bool, kind string, err error) error {
	old := s.trouble.Swap(&fault{kind, err.Error()})
	if told := old != nil && old.kind == kind && (kind != "refused" || old.text == err.Error()); told && !asked {
		return err
	}
	s.metrics.failures.Inc()
	if !asked {
		line, _, _ := strings.Cut(err.Error(), "\n")
		s.log.Error("policy not taken over, the old one stays", "why", kind, "source", s.place.String(), "err", line)
	}
	return err
}

// mend ends a fault.
func (s *Source) mend() {
	if old := s.trouble.Swap(nil); old != nil && old.kind == "away" {
		s.log.Info("policy can be read again", "source", s.place.String())
	}
}

func (s *Source) setNewest(hash string) { s.newest.Store(&hash) }

// State is for /debug/state and penstock status.
type State struct {
	Source  string  `json:"source"`
	Hash    string  `json:"hash"`
	Newest  string  `json:"newest"`      // of the text that lies there, right or wrong; "" = none was read
	Age     float64 `json:"age_seconds"` // since it came into force
	Problem string  `json:"problem,omitempty"`
}

// State says which policy is in force, and why not the one that lies there. Any
// goroutine may call it.
func (s *Source) State() State {
	now := s.current.Load()
	state := State{Source: s.place.String(), Hash: now.policy.Hash, Newest: *s.newest.Load(), Age: time.Since(now.at).Seconds()}
	if f := s.trouble.Load(); f != nil {
		state.Problem = f.text
	}
	return state
}

type metrics struct {
	info     *prometheus.GaugeVec
	failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		info:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_policy_info", Help: "The policy in force, by the hash of its text; empty where flags make it."}, []string{"hash"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_policy_reload_failures_total", Help: "Times that a policy was refused, gone or could not be read; the old one stayed in force."}),
	}
	return m, errors.Join(reg.Register(m.info), reg.Register(m.failures))
}

// now makes hash the only series of info.
func (m *metrics) now(hash string) {
	m.info.Reset()
	m.info.WithLabelValues(hash).Set(1)
}
