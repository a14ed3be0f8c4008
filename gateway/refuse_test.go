package gateway

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/fleet"
	"penstock/policy"
	"penstock/policy/apikey"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -rewrite accepts it:\n%s", path, diff)
	}
}

// unspread undoes the one spread that shows in whole seconds.
func unspread(s string) string { return strings.ReplaceAll(s, "in 6 seconds", "in 5 seconds") }

// stub answers calls as a test wants.
type stub struct {
	registry.Records
	registry.Directory
	admission registry.Admission
	openErr   error
	stumbles  int // Opens that are not answered before those that are
	engines   []registry.Engine
	dirErr    error
	cancels   []string
	limit     time.Duration // what Open must be called with; 0 = anything
}

func (s *stub) Open(_ context.Context, r registry.Request, _ registry.Drain) (registry.Admission, error) {
	if s.limit > 0 && r.Limit != s.limit {
		return registry.Admission{}, fmt.Errorf("opened with limit %s, want %s", r.Limit, s.limit)
	}
	if s.stumbles--; s.stumbles >= 0 {
		return registry.Admission{}, registry.ErrAway
	}
	return s.admission, s.openErr
}

func (s *stub) Cancel(_ context.Context, id string, _ bool) (registry.Canceled, error) {
	s.cancels = append(s.cancels, id)
	return registry.Canceled{State: registry.Queued}, nil
}

func (s *stub) Engines(context.Context) ([]registry.Engine, error) { return s.engines, s.dirErr }

// TestRefusedRequests drives every cause of a refusal through the handler.
func TestRefusedRequests(t *testing.T) {
	keys, err := apikey.Parse([]byte("acme: secret"))
	if err != nil {
		t.Fatal(err)
	}
	live := func(seen time.Duration, state reason.Reason) []registry.Engine {
		e := registry.Engine{Models: []string{"q"}, State: state, Seen: time.Now().Add(-seen)}
		return []registry.Engine{e, e, e}
	}
	type setup struct {
		cfg     *Config
		deps    *Deps
		stub    *stub
		request *http.Request
		g       *Gateway
		rows    []fleet.Row
	}
	water := func(kv float64, waiting int) []fleet.Row {
		r := fleet.Row{Models: fleet.Models("q"), State: reason.OK, KV: kv, Waiting: waiting, At: time.Now()}
		return []fleet.Row{r, r}
	}
	for _, c := range []struct {
		name    string
		set     func(*setup)
		body    string
		status  int
		reason  string
		message string
		cancels int
	}{
		{name: "bad JSON", body: `{"model"`, status: 400, reason: "invalid_request", message: "The body is not valid JSON."},
		{name: "duplicate key", body: `{"model":"a","MODEL":"c"}`, status: 400, reason: "invalid_request", message: "The key 'model' appears twice (names are compared in any case). Send it once."},
		{name: "no model", body: `{}`, status: 400, reason: "invalid_request", message: `The body needs "model", a non-empty string.`},
		{name: "bad header", set: func(s *setup) { s.request.Header.Set("X-Slo-Ttft-Ms", "-5") }, status: 400, reason: "invalid_request", message: `The header x-slo-ttft-ms is "-5". Send milliseconds from 1 to 600000.`},
		{name: "compressed", set: func(s *setup) { s.request.Header.Set("Content-Encoding", "gzip") }, status: 400, reason: "invalid_request", message: `Content-Encoding "gzip" is not supported. Send plain JSON.`},
		{name: "body too big", set: func(s *setup) { s.cfg.MaxBody = 10 }, status: 413, reason: "body_too_large", message: "The body is larger than 10 bytes, the limit of this gateway (max_body in its configuration)."},
		{name: "body too big, length unknown", set: func(s *setup) { s.cfg.MaxBody, s.request.ContentLength = 10, -1 }, status: 413, reason: "body_too_large", message: "The body is larger than 10 bytes, the limit of this gateway (max_body in its configuration)."},
		{name: "no key", set: func(s *setup) { s.deps.Policy = policy.Default(nil, "").WithKeys(keys) }, status: 401, reason: "invalid_api_key", message: `No valid API key. Send "Authorization: Bearer KEY".`},
		{name: "wrong key", set: func(s *setup) {
			s.deps.Policy = policy.Default(nil, "").WithKeys(keys)
			s.request.Header.Set("Authorization", "Bearer nope")
		}, status: 401, reason: "invalid_api_key", message: `No valid API key. Send "Authorization: Bearer KEY".`},
		{name: "no engine yet", set: func(s *setup) { s.stub.engines = nil }, status: 503, reason: "no_engine", message: "No engine for model 'q' is reachable. Please try again in 5 seconds."},
		{name: "engine starts", set: func(s *setup) {
			s.stub.engines = []registry.Engine{{Node: "n", State: reason.Starting, Seen: time.Now()}}
		}, status: 503, reason: "no_engine", message: "No engine for model 'q' takes work now (1 known, starting). Please try again in 5 seconds."},
		{name: "unknown model", set: func(s *setup) {
			s.stub.engines = []registry.Engine{{Node: "n", Models: []string{"other"}, State: reason.OK, Seen: time.Now()}}
		}, status: 404, reason: "model_not_found", message: "The model 'q' does not exist here. GET /v1/models lists what does."},
		{name: "engines gone", set: func(s *setup) { s.stub.engines = live(40500*time.Millisecond, reason.OK) }, status: 503, reason: "no_engine", message: "No engine for model 'q' is reachable (3 known, last seen 41 s ago). Please try again in 5 seconds."},
		{name: "engines drain", set: func(s *setup) { s.stub.engines = live(0, reason.Draining) }, status: 503, reason: "no_engine", message: "No engine for model 'q' takes work now (3 known, draining). Please try again in 5 seconds."},
		{name: "engines gone after a drain", set: func(s *setup) { s.stub.engines = live(40500*time.Millisecond, reason.Draining) }, status: 503, reason: "no_engine", message: "No engine for model 'q' is reachable (3 known, last seen 41 s ago: draining). Please try again in 5 seconds."},
		{name: "engines blind, cause known", set: func(s *setup) {
			s.stub.engines = live(0, reason.Blind)
			s.deps.Cause = func(string) string { return "blind 12 s: connection refused" }
		}, status: 503, reason: "no_engine", message: "No engine for model 'q' takes work now (3 known, blind 12 s: connection refused). Please try again in 5 seconds."},
		{name: "engines blind, cause in the directory", set: func(s *setup) {
			s.stub.engines = []registry.Engine{{Node: "n", Models: []string{"q"}, State: reason.Blind, Since: time.Now().Add(-12500 * time.Millisecond), Cause: "connection refused", Seen: time.Now()}}
		}, status: 503, reason: "no_engine", message: "No engine for model 'q' takes work now (1 known, blind 12 s: connection refused). Please try again in 5 seconds."},
		{name: "engines gone when blind", set: func(s *setup) {
			seen := time.Now().Add(-40500 * time.Millisecond)
			s.stub.engines = []registry.Engine{{Node: "n", Models: []string{"q"}, State: reason.Blind, Since: seen.Add(-12500 * time.Millisecond), Cause: "connection refused", Seen: seen}}
		}, status: 503, reason: "no_engine", message: "No engine for model 'q' is reachable (1 known, last seen 41 s ago: blind 12 s: connection refused). Please try again in 5 seconds."},
		{name: "directory away", set: func(s *setup) { s.stub.dirErr = registry.ErrAway }, status: 503, reason: "record_store_away", message: "The request store cannot be reached, so the request was not accepted. Please try again in 5 seconds."},
		{name: "store away", set: func(s *setup) { s.stub.openErr = registry.ErrAway }, status: 503, reason: "record_store_away", message: "The request store cannot be reached, so the request was not accepted. Please try again in 5 seconds.", cancels: 1},
		{name: "store slow for a moment", set: func(s *setup) {
			s.stub.stumbles, s.stub.admission = 3, registry.Admission{Reason: reason.LaneFull, Ahead: 1, Wait: time.Second}
		}, status: 429, reason: "lane_full", message: "Your queue for model 'q' is full: 1 request ahead, about 1 s. Please try again in 1 second."},
		{name: "too large for the broker", set: func(s *setup) {
			s.deps.Publish = func(context.Context, *queue.Message) error { return fmt.Errorf("x: %w", queue.ErrTooLarge) }
		}, body: `{"model":"q","prompt":"x"}`, status: 413, reason: "body_too_large", message: "The body of 26 bytes is larger than the broker of this fleet takes (its maxMessageSize).", cancels: 1},
		{name: "store fails", set: func(s *setup) { s.stub.openErr = errors.New("odd") }, status: 503, reason: "record_store_away", message: "The request store cannot be reached, so the request was not accepted. Please try again in 5 seconds.", cancels: 1},
		{name: "saturated", set: func(s *setup) {
			s.stub.admission = registry.Admission{Reason: reason.Overloaded, Ahead: 37, Wait: 12 * time.Second, RetryAfter: 12 * time.Second}
		}, status: 429, reason: "server_is_overloaded", message: "All engines for model 'q' are busy: 37 requests ahead, about 12 s. Please try again in 12 seconds."},
		{name: "by the water, KV", set: func(s *setup) { s.cfg.RefuseLaw, s.rows = LawWatermark, water(0.93, 3) }, status: 429, reason: "server_is_overloaded", message: "The engines for model 'q' are full: 93 % of their KV cache, 6 requests waiting in 2 engines. Please try again in 1 second."},
		{name: "by the water, waiting", set: func(s *setup) { s.cfg.RefuseLaw, s.rows = LawWatermark, water(0.3, 21) }, status: 429, reason: "server_is_overloaded", message: "The engines for model 'q' are full: 30 % of their KV cache, 42 requests waiting in 2 engines. Please try again in 1 second."},
		{name: "below it the record store has no say by rate", set: func(s *setup) {
			s.cfg.RefuseLaw, s.rows = LawWatermark, water(0.3, 20)
			s.stub.admission = registry.Admission{Reason: reason.LaneFull, Ahead: 1, Wait: time.Second}
			s.stub.limit = 600 * time.Second
		}, status: 429, reason: "lane_full", message: "Your queue for model 'q' is full: 1 request ahead, about 1 s. Please try again in 1 second."},
		{name: "one ahead", set: func(s *setup) {
			s.stub.admission = registry.Admission{Reason: reason.Overloaded, Ahead: 1, Wait: 1900 * time.Millisecond, RetryAfter: time.Second}
		}, status: 429, reason: "server_is_overloaded", message: "All engines for model 'q' are busy: 1 request ahead, about 2 s. Please try again in 1 second."},
		{name: "lane full", set: func(s *setup) {
			s.stub.admission = registry.Admission{Reason: reason.LaneFull, Ahead: 10000, Wait: time.Minute, RetryAfter: 60 * time.Second}
		}, status: 429, reason: "lane_full", message: "Your queue for model 'q' is full: 10000 requests ahead, about 60 s. Please try again in 60 seconds."},
		{name: "lane full at publish", set: func(s *setup) {
			s.deps.Publish = func(context.Context, *queue.Message) error { return fmt.Errorf("x: %w", queue.ErrFull) }
		}, status: 429, reason: "lane_full", message: "The queue for model 'q' is full. Please try again in 1 second.", cancels: 1},
		{name: "broker away", set: func(s *setup) {
			s.deps.Publish = func(context.Context, *queue.Message) error { return errors.New("refused") }
		}, status: 503, reason: "broker_away", message: "The queue cannot be reached, so the request was not accepted. Please try again in 5 seconds.", cancels: 1},
		{name: "queue closed", set: func(s *setup) {
			s.deps.Publish = func(context.Context, *queue.Message) error { return queue.ErrClosed }
		}, status: 503, reason: "draining", message: "This gateway is shutting down. Please try again in 1 second.", cancels: 1},
		{name: "draining", set: func(s *setup) { s.g.draining.Store(true) }, status: 503, reason: "draining", message: "This gateway is shutting down. Please try again in 1 second."},
		{name: "too many open", set: func(s *setup) { s.cfg.MaxOpen = 1; s.g.open.Add(1) }, status: 429, reason: "server_is_overloaded", message: "This gateway holds 1 open requests, its limit. Please try again in 1 second."},
		{name: "mailbox", set: func(s *setup) {
			s.deps.OpenMailbox = func(string, func(response.Event)) (func(), error) { return nil, errors.New("no") }
		}, status: 503, reason: "record_store_away", message: "The request store cannot be reached, so the request was not accepted. Please try again in 5 seconds."},
		{name: "no route", set: func(s *setup) { s.request.URL.Path = "/v1/responses" }, status: 404, reason: "not_found", message: "There is no /v1/responses here. Try /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/models."},
		{name: "wrong method", set: func(s *setup) { s.request.Method = "PUT" }, status: 405, reason: "not_found", message: "/v1/chat/completions wants POST."},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.body == "" {
				c.body = streamBody
			}
			stub := &stub{admission: registry.Admission{Reason: reason.OK}, engines: live(0, reason.OK)}
			var s *stage
			set := &setup{stub: stub, request: httptest.NewRequest("POST", chatPath, strings.NewReader(c.body)), g: &Gateway{}}
			s = newStage(t, func(cfg *Config, d *Deps) {
				d.Records, d.Directory, d.Rows = stub, stub, func() []fleet.Row { return set.rows }
				set.cfg, set.deps = cfg, d
				if c.set != nil {
					c.set(set)
				}
			})
			s.g.draining.Store(set.g.draining.Load())
			s.g.open.Add(set.g.open.Load())
			rec := httptest.NewRecorder()
			s.g.Handler().ServeHTTP(rec, set.request)
			message, _, _ := errorOf(t, unspread(rec.Body.String()))
			if rec.Code != c.status || rec.Header().Get("X-Penstock-Reason") != c.reason || message != c.message {
				t.Errorf("got %d %s %q,\nwant %d %s %q", rec.Code, rec.Header().Get("X-Penstock-Reason"), message, c.status, c.reason, c.message)
			}
			if len(stub.cancels) != c.cancels {
				t.Errorf("cancelled %v, want %d", stub.cancels, c.cancels)
			}
			if got := counter(t, s, "penstock_refusals_total", "status", fmt.Sprint(c.status), "reason", c.reason); got != 1 {
				t.Errorf("refusals{%d,%s} = %v, want 1", c.status, c.reason, got)
			}
			if left := s.g.open.Load() - set.g.open.Load(); left != 0 || counter(t, s, "penstock_open_requests") != 0 {
				t.Errorf("%d requests are still open", left)
			}
		})
	}
}
