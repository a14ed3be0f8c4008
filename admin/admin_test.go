package admin

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func deps(t *testing.T) Deps {
	t.Helper()
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_test_total", Help: "A test's counter."})
	reg.MustRegister(c)
	return Deps{
		Gatherer: reg,
		Live:     func() (bool, string) { return true, "" },
		Ready:    func() (bool, string) { return false, "blind" },
		Started:  func() bool { return false },
		State:    func() any { return map[string]int{"running": 3} },
		Log:      slog.New(slog.DiscardHandler),
	}
}

func get(t *testing.T, h http.Handler, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRoutes(t *testing.T) {
	for _, tc := range []struct {
		name, path, accept string
		debug              bool
		code               int
		contentType        string
		contains           string
	}{
		{"live", "/livez", "", true, 200, "application/json", `"status": "ok"`},
		{"not ready says why", "/readyz", "", true, 503, "application/json", `"reason": "blind"`},
		{"not started", "/startupz", "", true, 503, "application/json", `"reason": "starting"`},
		{"prometheus text", "/metrics", "text/plain", true, 200, "text/plain", "penstock_test_total 0\n"},
		{"openmetrics text", "/metrics", "application/openmetrics-text; version=1.0.0", true, 200, "application/openmetrics-text", "# EOF\n"},
		{"state", "/debug/state", "", true, 200, "application/json", `"running": 3`},
		{"profiles", "/debug/pprof/", "", true, 200, "text/html", "goroutine"},
		{"heap by name", "/debug/pprof/heap?debug=1", "", true, 200, "text/plain", "heap profile"},
		{"index lists all", "/", "", true, 200, "text/html", "/debug/state"},
		{"no state in public", "/debug/state", "", false, 404, "", ""},
		{"no profiles in public", "/debug/pprof/heap", "", false, 404, "", ""},
		{"public has metrics", "/metrics", "text/plain", false, 200, "text/plain", "penstock_test_total"},
		{"unknown", "/nope", "", true, 404, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Debug = tc.debug
			s, err := New(cfg, deps(t))
			if err != nil {
				t.Fatal(err)
			}
			w := get(t, s.Handler(), tc.path, tc.accept)
			if w.Code != tc.code || !strings.Contains(w.Header().Get("Content-Type"), tc.contentType) || !strings.Contains(w.Body.String(), tc.contains) {
				t.Errorf("GET %s: got %d %q, want %d %q; body %q does not contain %q",
					tc.path, w.Code, w.Header().Get("Content-Type"), tc.code, tc.contentType, w.Body, tc.contains)
			}
		})
	}
}

func TestProbeAnswer(t *testing.T) {
	s, err := New(DefaultConfig(), deps(t))
	if err != nil {
		t.Fatal(err)
	}
	var got Status
	if err := json.Unmarshal(get(t, s.Handler(), "/readyz", "").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Status{Status: "unavailable", Name: "penstock", Reason: "blind"}, got); diff != "" {
		t.Errorf("GET /readyz: -want +got\n%s", diff)
	}
}

func TestStateThatCannotBeEncoded(t *testing.T) {
	d := deps(t)
	d.State = func() any { return func() {} }
	s, err := New(DefaultConfig(), d)
	if err != nil {
		t.Fatal(err)
	}
	if w := get(t, s.Handler(), "/debug/state", ""); w.Code != http.StatusInternalServerError {
		t.Errorf("GET /debug/state: got %d, want 500", w.Code)
	}
}

func TestServe(t *testing.T) {
	s, err := New(DefaultConfig(), deps(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + l.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body) //nolint:errcheck // only the end matters
	resp.Body.Close()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve after its context ended: got %v, want nil", err)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if err := s.Serve(t.Context(), closed); err == nil {
		t.Error("Serve on a closed listener: got nil, want an error")
	}
}

func TestConfig(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(*Config)
		want string
	}{
		{"default", func(*Config) {}, ""},
		{"no name", func(c *Config) { c.Name = "" }, "Name"},
		{"no header timeout", func(c *Config) { c.HeaderTimeout = 0 }, "HeaderTimeout is 0s"},
		{"negative close timeout", func(c *Config) { c.CloseTimeout = -1 }, "CloseTimeout"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := DefaultConfig()
			tc.set(&cfg)
			_, err := New(cfg, deps(t))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("New: got %v, want an error with %q", err, tc.want)
			}
		})
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil {
		t.Error("New without dependencies: got nil, want an error")
	}
}
