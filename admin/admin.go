// Package admin is the HTTP that every role serves to its operators: metrics,
// probes, what the process knows and profiles. It holds no state: what
// it shows comes from the funcs it is given.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config of a Server.
type Config struct {
	// Name is the role, shown on the index page and in probe answers.
	Name string
	// Debug serves /debug/state, /debug/pprof and POST /reload as well. They tell and do
	// more than a network should: only for a listener on loopback.
	Debug bool
	// HeaderTimeout bounds how long a client may take to send its request's header.
	HeaderTimeout time.Duration
	// CloseTimeout bounds the wait for answers in progress when Serve ends.
	CloseTimeout time.Duration
}

// DefaultConfig is a loopback server's.
func DefaultConfig() Config {
	return Config{Name: "penstock", Debug: true, HeaderTimeout: 5 * time.Second, CloseTimeout: 2 * time.Second}
}

// Validate names the field, the value and what to set instead.
func (c Config) Validate() error {
	switch {
	case c.Name == "":
		return errors.New("admin: Name is empty; set the role's name")
	case c.HeaderTimeout <= 0:
		return fmt.Errorf("admin: HeaderTimeout is %v; set a positive duration", c.HeaderTimeout)
	case c.CloseTimeout < 0:
		return fmt.Errorf("admin: CloseTimeout is %v; set 0 or more", c.CloseTimeout)
	}
	return nil
}

// Deps is what a Server shows. Every func is called from many goroutines at once
// and answers within milliseconds: a probe must not wait for an engine.
type Deps struct {
	Gatherer prometheus.Gatherer
	// Live and Ready say yes, or why not. Live concerns this process only, never an
	// engine or a broker: a restart would not help those.
	Live, Ready func() (ok bool, reason string)
	// Started says yes once the process has come up, and never no again.
	Started func() bool
	// State returns what /debug/state shows, as a value encoding/json can write.
	State func() any
	// Reload reads changed files again and says what became of each part, ok if nothing
	// was refused; nil = there is nothing to reload.
	Reload func(ctx context.Context) (report any, ok bool)
	Log    *slog.Logger
}

// Server answers operators and probes.
type Server struct {
	cfg  Config
	deps Deps
	mux  *http.ServeMux
}

// New builds the routes and starts nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Gatherer == nil || deps.Live == nil || deps.Ready == nil || deps.Started == nil || deps.State == nil || deps.Log == nil {
		return nil, errors.New("admin: a dependency is nil; Deps needs all of them")
	}
	s := &Server{cfg: cfg, deps: deps, mux: http.NewServeMux()}
	pages := []page{
		{"/metrics", "Prometheus or OpenMetrics text"},
		{"/livez", "is this process alive"},
		{"/readyz", "may it get work"},
		{"/startupz", "has it come up"},
	}
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(deps.Gatherer, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorLog:          slog.NewLogLogger(deps.Log.Handler(), slog.LevelWarn),
		ErrorHandling:     promhttp.ContinueOnError,
	}))
	s.mux.HandleFunc("GET /livez", s.probe(deps.Live))
	s.mux.HandleFunc("GET /readyz", s.probe(deps.Ready))
	s.mux.HandleFunc("GET /startupz", s.probe(func() (bool, string) { return deps.Started(), "starting" }))
	if cfg.Debug {
		pages = append(pages, page{"/debug/state", "what this process knows; its last verdicts and failures"}, page{"/debug/pprof/", "profiles"})
		s.mux.HandleFunc("GET /debug/state", s.state)
		s.mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		s.mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		s.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		s.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		s.mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // go tool pprof sends long address lists
		s.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	if cfg.Debug && deps.Reload != nil {
		// Not for a page of the web that a browser on this host shows.
		s.mux.Handle("POST /reload", http.NewCrossOriginProtection().Handler(http.HandlerFunc(s.reload)))
	}
	s.mux.HandleFunc("GET /{$}", s.index(pages))
	return s, nil
}

// Handler serves the routes, for tests and for a listener shared with others.
func (s *Server) Handler() http.Handler { return s.mux }

// Serve answers on l until ctx ends, then lets answers in progress end for at most
// CloseTimeout. It closes l and returns nil after an ordered end.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		ErrorLog:          slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve admin on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CloseTimeout)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		srv.Close() // a profile still runs: cut it
	}
	<-served
	return nil
}

// Status is a probe's answer.
type Status struct {
	Status string `json:"status"` // "ok" or "unavailable"
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"` // why unavailable
}

func (s *Server) probe(ask func() (bool, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		ok, why := ask()
		if ok {
			s.write(w, http.StatusOK, Status{Status: "ok", Name: s.cfg.Name})
			return
		}
		s.write(w, http.StatusServiceUnavailable, Status{Status: "unavailable", Name: s.cfg.Name, Reason: why})
	}
}

func (s *Server) state(w http.ResponseWriter, _ *http.Request) {
	s.write(w, http.StatusOK, s.deps.State())
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	report, ok := s.deps.Reload(r.Context())
	code := http.StatusOK
	if !ok {
		code = http.StatusUnprocessableEntity
	}
	s.write(w, code, report)
}

func (s *Server) write(w http.ResponseWriter, code int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		s.deps.Log.Error("encode admin page", "err", err)
		http.Error(w, `{"status":"unavailable","reason":"encoding"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	w.Write(append(body, '\n')) //nolint:errcheck // the client left; nobody is there to tell
}

type page struct{ Path, What string }

var indexPage = template.Must(template.New("index").Parse(`<!doctype html>
<meta charset="utf-8"><title>{{.Name}}</title>
<h1>{{.Name}}</h1>
<ul>{{range .Pages}}
<li><a href="{{.Path}}">{{.Path}}</a>: {{.What}}{{end}}
</ul>
`))

func (s *Server) index(pages []page) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		indexPage.Execute(w, struct { //nolint:errcheck // as above
			Name  string
			Pages []page
		}{s.cfg.Name, pages})
	}
}
