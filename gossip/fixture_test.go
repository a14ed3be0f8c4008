package gossip

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// words is a State: a set that only grows.
type words struct {
	mu     sync.Mutex
	set    map[string]bool
	refuse error
}

func (w *words) MarshalBinary() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []byte(strings.Join(slices.Sorted(maps.Keys(w.set)), "\n")), w.refuse
}

func (w *words) Merge(state []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for word := range strings.Lines(string(state)) {
		w.set[strings.TrimSpace(word)] = true
	}
	return w.refuse
}

func (w *words) has(all ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(all, func(word string) bool { return !w.set[word] })
}

// node is a Gossip that runs, and what it received and logged.
type node struct {
	*Gossip
	addr  string
	state *words
	reg   *prometheus.Registry
	got   chan string
	out   *buffer
	bind  string // where it listens, before start
	stop  func() // ends Run and waits; may be called again
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// quick is a configuration for tests that wait for what takes seconds in a fleet.
func quick(name string, join ...string) Config {
	c := DefaultConfig()
	c.Name, c.Label, c.Join = name, "test", join
	c.GossipEvery, c.ProbeEvery = 20*time.Millisecond, 200*time.Millisecond
	c.SyncEvery, c.JoinEvery, c.ReclaimAfter = time.Minute, 200*time.Millisecond, 100*time.Millisecond
	c.Timeout, c.LeaveTimeout = 500*time.Millisecond, 60*time.Millisecond
	return c
}

func listenOn(t testing.TB, at string) *Listener {
	t.Helper()
	l, err := Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func start(t testing.TB, cfg Config, prepare ...func(*node)) *node {
	t.Helper()
	n := &node{
		state: &words{set: map[string]bool{cfg.Name: true}},
		reg:   prometheus.NewRegistry(), got: make(chan string, 4096), out: &buffer{},
		bind: "127.0.0.1:0",
	}
	log := slog.New(slog.NewTextHandler(n.out, nil))
	var err error
	if n.Gossip, err = New(cfg, n.state, func(msg []byte) { n.got <- string(msg) }, log, n.reg); err != nil {
		t.Fatal(err)
	}
	for _, p := range prepare {
		p(n)
	}
	l := listenOn(t, n.bind)
	n.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, l) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run of %s: %v", cfg.Name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("Run of %s does not end", cfg.Name)
		}
	})
	t.Cleanup(n.stop)
	return n
}

// fleet starts n nodes that join the first and waits until all know all.
func fleet(t testing.TB, n int, config func(name string, join ...string) Config, prepare ...func(*node)) []*node {
	t.Helper()
	all := []*node{start(t, config("n0"), prepare...)}
	for i := 1; i < n; i++ {
		all = append(all, start(t, config(fmt.Sprintf("n%d", i), all[0].addr), prepare...))
	}
	eventually(t, "all know all", func() bool { return converged(all, n) })
	return all
}

func converged(all []*node, n int) bool {
	return !slices.ContainsFunc(all, func(a *node) bool { return len(a.Members()) != n })
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (n *node) next(t testing.TB) string {
	t.Helper()
	select {
	case msg := <-n.got:
		return msg
	case <-time.After(15 * time.Second):
		t.Fatalf("%s received nothing", n.cfg.Name)
		return ""
	}
}

// metric reads one series of the node's own registry; label "" is a plain gauge.
func (n *node) metric(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := n.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "penstock_gossip_"+name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series penstock_gossip_%s with %q", name, label)
	return 0
}

func makeKey() string {
	key := make([]byte, 32)
	rand.Read(key)
	return base64.StdEncoding.EncodeToString(key)
}

func keyFile(t testing.TB, keys ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gossip.key")
	writeKeys(t, path, keys...)
	return path
}

func writeKeys(t testing.TB, path string, keys ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

var errRefused = errors.New("refused by the test")
