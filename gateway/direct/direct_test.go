package direct

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owner is an agent on which request "runs" runs until it is aborted.
type owner struct {
	penstockv1.UnimplementedAgentServiceServer
	refuse error
	hang   bool

	mu  sync.Mutex
	ids []string
}

func (o *owner) Abort(ctx context.Context, r *penstockv1.AbortRequest) (*penstockv1.AbortResponse, error) {
	if o.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if o.refuse != nil {
		return nil, o.refuse
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ids = append(o.ids, r.GetId()+r.GetAttempt())
	return &penstockv1.AbortResponse{Running: r.GetId() == "runs"}, nil
}

// serve puts o on an address until the test or stop ends it.
func serve(t *testing.T, o *owner, at string, creds credentials.TransportCredentials) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	var options []grpc.ServerOption
	if creds != nil {
		options = append(options, grpc.Creds(creds))
	}
	s := grpc.NewServer(options...)
	penstockv1.RegisterAgentServiceServer(s, o)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// newAborts runs until the test or stop ends it.
func newAborts(t *testing.T, cfg Config) (a *Aborts, stop func()) {
	t.Helper()
	a, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	until(t, "it runs", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.conns != nil })
	return a, stop
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for: %s", what)
		}
	}
}

func (a *Aborts) seen() map[string]float64 {
	seen := map[string]float64{}
	for name, c := range a.counts {
		if n := testutil.ToFloat64(c); n > 0 {
			seen[name] = n
		}
	}
	return seen
}

// become waits until the outcomes are want.
func (a *Aborts) become(t *testing.T, want map[string]float64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		diff := cmp.Diff(want, a.seen())
		if diff == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("outcomes (-want +got):\n%s", diff)
		}
	}
}

func TestAbort(t *testing.T) {
	o := &owner{}
	address, stop := serve(t, o, "127.0.0.1:0", nil)
	a, end := newAborts(t, DefaultConfig())
	a.Abort(address, "runs")
	a.become(t, map[string]float64{stopped: 1})
	a.Abort(address, "other")
	a.Abort("", "runs")
	a.Abort("192.0.2.1:4781", "runs")
	a.become(t, map[string]float64{stopped: 1, notThere: 1, noAddress: 1, noCert: 1})
	if diff := cmp.Diff([]string{"runs", "other"}, o.ids); diff != "" {
		t.Errorf("aborts that arrived (-want +got):\n%s", diff)
	}
	if n := len(a.conns); n != 1 {
		t.Errorf("%d connections for one agent, want 1", n)
	}

	stop() // dead
	a.Abort(address, "runs")
	a.become(t, map[string]float64{stopped: 1, notThere: 1, noAddress: 1, noCert: 1, failed: 1})
	_, _ = serve(t, o, address, nil) // and back: called again on its own
	until(t, "the one that is back is told", func() bool { a.Abort(address, "runs"); return a.seen()[stopped] > 1 })
	end()
	before := a.seen()[dropped]
	a.Abort(address, "runs")
	if got := a.seen()[dropped]; got != before+1 {
		t.Errorf("after Run %v were dropped, want %v", got, before+1)
	}
}

// TestHang: who does not answer is given up in time, holds no caller up, and takes no
// more than the bound; Run waits for what is under way.
func TestHang(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never speaks
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	hung, _ := serve(t, &owner{hang: true}, "127.0.0.1:0", nil)
	for name, address := range map[string]string{"host": silent.Addr().String(), "agent": hung} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.InFlight = 3
			a, end := newAborts(t, cfg)
			began := time.Now()
			for range 5 {
				a.Abort(address, "runs")
			}
			told := time.Since(began)
			a.become(t, map[string]float64{dropped: 2, timedOut: 3})
			if took := time.Since(began); told > cfg.Within/2 || took < cfg.Within/2 || took > 20*cfg.Within {
				t.Errorf("5 aborts took their callers %v and were over after %v, want 0 and about %v", told, took, cfg.Within)
			}
			a.Abort(address, "runs") // the places are free again
			end()
			if seen := a.seen(); seen[timedOut]+seen[failed] != 4 || len(a.calling) != 0 {
				t.Errorf("after Run: %v and %d under way, want 4 ended and none", seen, len(a.calling))
			}
		})
	}
}

func TestDenied(t *testing.T) {
	address, _ := serve(t, &owner{refuse: status.Error(codes.PermissionDenied, "needs a certificate")}, "127.0.0.1:0", nil)
	a, _ := newAborts(t, DefaultConfig())
	a.Abort(address, "runs")
	a.become(t, map[string]float64{denied: 1})
}

// TestConnections: not more than the bound, and the one not used for longest gives way.
func TestConnections(t *testing.T) {
	cfg := DefaultConfig()
	cfg.InFlight, cfg.Connections = 2, 2
	a, _ := newAborts(t, cfg)
	var addresses []string
	for i := range 4 {
		address, _ := serve(t, &owner{}, "127.0.0.1:0", nil)
		addresses = append(addresses, address)
		a.Abort(address, "runs")
		a.become(t, map[string]float64{stopped: float64(i + 1)})
	}
	a.Abort(addresses[2], "runs") // used later than the last
	a.become(t, map[string]float64{stopped: 5})
	a.Abort(addresses[0], "runs")
	a.become(t, map[string]float64{stopped: 6})
	has := func() (has [4]bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for i, address := range addresses {
			has[i] = a.conns[address] != nil
		}
		return has
	}
	if got, want := has(), [4]bool{true, false, true, false}; got != want {
		t.Errorf("connections: got %v, want %v", got, want)
	}
	a.mu.Lock()
	for _, c := range a.conns {
		c.used = c.used.Add(-cfg.Idle - time.Second)
	}
	a.mu.Unlock()
	a.Abort(addresses[1], "runs")
	a.become(t, map[string]float64{stopped: 7})
	if got, want := has(), [4]bool{false, true, false, false}; got != want {
		t.Errorf("connections after the others were idle: got %v, want %v", got, want)
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"Within": func(c *Config) { c.Within = 2 * time.Second }, "InFlight": func(c *Config) { c.InFlight = 0 },
		"Connections": func(c *Config) { c.Connections = c.InFlight - 1 }, "Idle": func(c *Config) { c.Idle = 0 },
		"both or neither": func(c *Config) { c.Files = Files{CA: "system", Cert: "c"} }, "authority": func(c *Config) { c.Files = Files{Cert: "c", Key: "k"} },
		"no such file": func(c *Config) { c.Files.CA = "/none" },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if _, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error that names it", name, err)
		}
	}
}

// TestMetric: every outcome is there before the first abort.
func TestMetric(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := New(DefaultConfig(), slog.New(slog.DiscardHandler), reg); err != nil {
		t.Fatal(err)
	}
	want := new(strings.Builder)
	want.WriteString("# HELP penstock_direct_aborts_total Aborts told to the agent that runs the request, by what became of them.\n# TYPE penstock_direct_aborts_total counter\n")
	for _, o := range outcomes {
		fmt.Fprintf(want, "penstock_direct_aborts_total{outcome=%q} 0\n", o)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want.String())); err != nil {
		t.Error(err)
	}
}
