// Package sourcetest holds what every place of a policy has in common: what is right is
// in force soon and whole, and whatever else happens leaves the old policy as it is, with
// a line in the log, a metric and a word in the state.
package sourcetest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/policy"
	"penstock/policy/apikey"
	"penstock/policy/source"
)

// within is how long anything may take.
const within = 10 * time.Second

// Stage is a place without a text.
type Stage struct {
	Place  source.Place
	Write  func(text string) // as an operator does
	Remove func()
	Away   func(away bool) // nil: it cannot be
}

// Run runs all rules. Each has a stage of its own.
func Run(t *testing.T, stage func(t *testing.T) Stage) {
	for name, rule := range map[string]func(*testing.T, Stage){
		"a change is in force soon":                    changes,
		"a wrong text leaves the old one":              wrong,
		"a text that is gone leaves the old one":       gone,
		"a place that is away leaves the old one":      away,
		"nothing there, where that is right":           absent,
		"nothing there, where one was asked for":       required,
		"away from the start":                          awayFirst,
		"keys do not vanish":                           keys,
		"every reader sees one whole policy at a time": whole,
	} {
		t.Run(name, func(t *testing.T) { rule(t, stage(t)) })
	}
}

// running is a source that runs until the test ends.
type running struct {
	*source.Source
	t   *testing.T
	reg *prometheus.Registry

	mu   sync.Mutex // guards what follows
	log  bytes.Buffer
	told []string // the tiers of each new policy
}

func (r *running) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(line)
}

func (r *running) lines(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), part)
}

// flags stands in where there is no policy.
var flags = policy.Default(nil, "")

func run(t *testing.T, s Stage, cfg source.Config) *running {
	t.Helper()
	r := &running{t: t, reg: prometheus.NewRegistry()}
	var err error
	if r.Source, err = source.New(cfg, s.Place, slog.New(slog.NewTextHandler(r, nil)), r.reg); err != nil {
		t.Fatal(err)
	}
	r.OnChange(func(p *policy.Policy) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, strings.Join(p.TierNames(), ""))
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log.String())
		}
	})
	return r
}

func (r *running) until(what string, holds func() bool) {
	r.t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s; state %+v", within, what, r.State())
		}
	}
}

func (r *running) tiers() string { return strings.Join(r.Current().TierNames(), "") }

// value sums the series of a metric and counts them.
func (r *running) value(name string) (sum float64, series int) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
				series++
			}
		}
	}
	return sum, series
}

func (r *running) failures() float64 {
	n, _ := r.value("penstock_policy_reload_failures_total")
	return n
}

// of is a policy with tiers of one letter.
func of(tiers string) string {
	var list []string
	for _, name := range tiers {
		list = append(list, fmt.Sprintf("{name: %c}", name))
	}
	return "tiers: [" + strings.Join(list, ", ") + "]\n"
}

func changes(t *testing.T, s Stage) {
	s.Write(of("a"))
	r := run(t, s, source.Config{})
	if r.tiers() != "a" {
		t.Fatalf("tiers %s at the start, want a", r.tiers())
	}
	first := r.Current()
	s.Write(of("ab"))
	r.until("ab", func() bool { return r.tiers() == "ab" })
	s.Write(of("c"))
	r.until("c", func() bool { return r.tiers() == "c" })
	if len(first.Tiers) != 1 || first.Missing {
		t.Error("the first policy has changed")
	}
	if changed, err := r.Reload(t.Context()); changed || err != nil {
		t.Errorf("Reload of what is in force: %v, %v; want unchanged", changed, err)
	}
	r.mu.Lock()
	told := fmt.Sprint(r.told)
	r.mu.Unlock()
	if told != "[ab c]" {
		t.Errorf("told %s, want [ab c]", told)
	}
	state := r.State()
	if p, _ := policy.Parse([]byte(of("c"))); state.Hash != p.Hash || state.Newest != p.Hash || state.Problem != "" || state.Source != s.Place.String() {
		t.Errorf("state %+v, want hash %s", state, p.Hash)
	}
	if sum, series := r.value("penstock_policy_info"); sum != 1 || series != 1 {
		t.Errorf("penstock_policy_info has %d series, want one", series)
	}
	if ok, why := r.Ready(); !ok {
		t.Error(why)
	}
}

func wrong(t *testing.T, s Stage) {
	s.Write(of("a"))
	r := run(t, s, source.Config{})
	good := r.Current()
	s.Write("tiers: [{name: a}]\ntears: []\n")
	r.until("the problem", func() bool { return strings.Contains(r.State().Problem, "tears") })
	_, err := r.Reload(t.Context())
	if err == nil || !strings.Contains(err.Error(), "line 2") && !strings.Contains(err.Error(), "[2:") || !strings.Contains(err.Error(), "^") {
		t.Errorf("Reload: %v, want the fault with its line and mark", err)
	}
	if r.Current() != good || r.lines("why=refused") != 1 || r.failures() != 2 {
		t.Errorf("policy %s, %d lines, %v failures; want the old one, one line, and two failures with the reload", r.Current().Hash, r.lines("why=refused"), r.failures())
	}
	if state := r.State(); state.Newest == state.Hash || state.Newest == "" {
		t.Errorf("state %+v, want the hash of the wrong text as the newest", state)
	}
	s.Write("#" + strings.Repeat("x", policy.MaxBytes))
	r.until("too long", func() bool { return !strings.Contains(r.State().Problem, "tears") })
	if r.Current() != good || r.State().Problem == "" {
		t.Errorf("a text that is too long: %+v", r.State())
	}
	s.Write(of("b"))
	r.until("b", func() bool { return r.tiers() == "b" && r.State().Problem == "" })
}

func gone(t *testing.T, s Stage) {
	s.Write(of("a"))
	r := run(t, s, source.Config{Without: flags, Optional: true})
	good := r.Current()
	s.Remove()
	r.until("gone", func() bool { return strings.Contains(r.State().Problem, "is gone") })
	if _, err := r.Reload(t.Context()); err == nil || r.Current() != good || r.lines("why=gone") != 1 || r.failures() != 2 {
		t.Errorf("%v, policy %s, %d lines, %v failures; want the old one, one line", err, r.Current().Hash, r.lines("why=gone"), r.failures())
	}
	s.Write(of("a"))
	r.until("back", func() bool { return r.State().Problem == "" })
	if r.Current() != good {
		t.Error("the same text made another policy")
	}
}

func away(t *testing.T, s Stage) {
	if s.Away == nil {
		t.Skip("it cannot be")
	}
	s.Write(of("a"))
	r := run(t, s, source.Config{})
	good := r.Current()
	s.Away(true)
	r.until("away", func() bool { return strings.Contains(r.State().Problem, "cannot be read") })
	if _, err := r.Reload(t.Context()); err == nil {
		t.Error("Reload of a place that is away succeeds")
	}
	if ok, why := r.Ready(); !ok || r.Current() != good || r.lines("why=away") != 1 {
		t.Errorf("ready %v %s, %d lines; want the old one in force, one line", ok, why, r.lines("why=away"))
	}
	s.Away(false)
	s.Write(of("b"))
	r.until("b", func() bool { return r.tiers() == "b" && r.State().Problem == "" })
}

func absent(t *testing.T, s Stage) {
	r := run(t, s, source.Config{Without: flags, Optional: true})
	if ok, why := r.Ready(); !ok || r.Current().Missing || r.State().Problem != "" || r.State().Hash != "" {
		t.Fatalf("ready %v %s, missing %v, %+v; want flags in force", ok, why, r.Current().Missing, r.State())
	}
	s.Write(of("a"))
	r.until("a", func() bool { return r.tiers() == "a" })
}

func required(t *testing.T, s Stage) {
	r := run(t, s, source.Config{Without: flags})
	if ok, why := r.Ready(); ok || !r.Current().Missing || !strings.Contains(why, source.ErrAbsent.Error()) {
		t.Errorf("ready %v, %q, missing %v; want that there is none", ok, why, r.Current().Missing)
	}
	s.Write(of("a"))
	r.until("a", func() bool { return r.tiers() == "a" && !r.Current().Missing })
	r.until("ready", func() bool { ok, _ := r.Ready(); return ok })
}

func awayFirst(t *testing.T, s Stage) {
	if s.Away == nil {
		t.Skip("it cannot be")
	}
	s.Away(true)
	r := run(t, s, source.Config{Without: flags, Optional: true})
	if ok, why := r.Ready(); ok || !r.Current().Missing || !strings.Contains(why, "cannot be read") {
		t.Errorf("ready %v, %q, missing %v; want nobody let in", ok, why, r.Current().Missing)
	}
	s.Away(false)
	r.until("none", func() bool { ok, _ := r.Ready(); return ok && !r.Current().Missing })
	s.Write(of("a"))
	r.until("a", func() bool { return r.tiers() == "a" })
}

func keys(t *testing.T, s Stage) {
	r := run(t, s, source.Config{Without: flags, NeedKeys: true})
	s.Write(of("a"))
	r.until("keys are needed", func() bool { return strings.Contains(r.State().Problem, "no keys") })
	if !r.Current().Missing {
		t.Error("a policy without keys is in force")
	}
	s.Write("tenants: {a: {keys: [\"" + apikey.Hash("k") + "\"]}}\n")
	r.until("keys", func() bool { return r.Current().Authenticates() })
	s.Write(of("a"))
	r.until("refused", func() bool { return r.State().Problem != "" })
	if !r.Current().Authenticates() {
		t.Error("everybody is let in")
	}
}

func whole(t *testing.T, s Stage) {
	s.Write(of("ab"))
	r := run(t, s, source.Config{})
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				p := r.Current()
				if got := strings.Join(p.TierNames(), ""); got != "ab" && got != "cd" || p.DefaultTier() != got[1:] {
					t.Errorf("tiers %s, default %s: of no policy", got, p.DefaultTier())
					return
				}
				_ = r.State()
				runtime.Gosched()
			}
		})
	}
	for i := range 20 {
		want := []string{"cd", "ab"}[i%2]
		s.Write(of(want))
		r.until(want, func() bool { return r.tiers() == want })
	}
	close(stop)
	readers.Wait()
}
