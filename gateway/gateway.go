// Package gateway is the client side: OpenAI-shaped HTTP in, a refusal or a place
// in a lane, and the engine's answer relayed as it comes. It owns every timer and
// the one outcome of each request. DESIGN.md says why it relays as it does.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/fleet"
	"penstock/gateway/admission"
	"penstock/gateway/directory"
	"penstock/gateway/headers"
	"penstock/gateway/inbox"
	"penstock/gateway/journal"
	"penstock/gateway/openai"
	"penstock/gateway/outcome"
	"penstock/gateway/refuse"
	"penstock/policy"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

const (
	headerWait  = 10 * time.Second // longest a client may take to send its headers
	bodyWait    = 60 * time.Second // longest a client may take to send its body
	idleWait    = 120 * time.Second
	maxHeaders  = 64 << 10
	maxStreams  = 1024 // requests at once on one HTTP/2 connection
	warnEvery   = 10 * time.Second
	closingWait = 2 * time.Second // for connections to end once their requests have
)

// Deps are the rooms the gateway talks to.
type Deps struct {
	Records   registry.Records
	Directory registry.Directory
	Publish   func(ctx context.Context, m *queue.Message) error
	// Discard frees a queued message whose client went away; optional.
	Discard func(id string) bool
	// OpenMailbox makes reply an address events can be appended to. handle is
	// called by writers: it does not block and copies what it keeps.
	OpenMailbox func(reply string, handle func(response.Event)) (closeMailbox func(), err error)
	// Address is the reply address of request id below the mailbox reply, where one
	// mailbox is several streams; optional.
	Address func(reply, id string) string
	// Abort tells the agents that a request is over by a way beside the record store,
	// whose cancel is the truth; it does not wait. Optional.
	Abort func(id string)
	// Direct tells the agent at address alone, where it is known who runs the request;
	// "" = its address is not. It does not wait. Optional.
	Direct func(address, id string)
	// Policy is who may do what until SetPolicy; nil = policy.Default.
	Policy *policy.Policy
	// Rows returns the engines' rows; optional.
	Rows func() []fleet.Row
	// Cause says on one line why an engine takes no work, where more is known than the
	// directory has. Optional.
	Cause   func(node string) string
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Gateway serves clients.
type Gateway struct {
	cfg       Config
	deps      Deps
	directory *directory.Directory
	refusals  refuse.Table
	inboxes   *inbox.All
	journal   *journal.Journal
	door      *admission.Door
	metrics   *outcome.Metrics
	policy    atomic.Pointer[policy.Policy]
	mux       *http.ServeMux
	reply     string // this incarnation's mailbox address
	started   time.Time
	mailbox   func() (closeMailbox func(), err error) // opens it at its first call
	mailState atomic.Pointer[string]                  // Mailbox.State

	warned sync.Map // call to time.Time of its last warning; a few fixed keys

	open     atomic.Int64  // requests between arrival and outcome
	empty    chan struct{} // size 1: open fell to 0 while draining
	serving  atomic.Bool
	draining atomic.Bool
}

// errCut is the cause of a request's context when a drain has run out of grace.
var errCut = errors.New("gateway: drain ran out of grace")

// New makes a gateway; the mailbox is opened by the first request or by Serve.
func New(cfg Config, deps Deps) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for name, missing := range map[string]bool{
		"Records": deps.Records == nil, "Directory": deps.Directory == nil, "Publish": deps.Publish == nil,
		"OpenMailbox": deps.OpenMailbox == nil, "Metrics": deps.Metrics == nil, "Log": deps.Log == nil,
	} {
		if missing {
			return nil, fmt.Errorf("gateway: Deps.%s is missing", name)
		}
	}
	if deps.Policy == nil {
		deps.Policy = policy.Default(nil, "")
	}
	table := refuse.Table{Saturated: cfg.SaturatedStatus}
	m, err := outcome.New(deps.Metrics, table, deps.Policy.TierNames())
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g := &Gateway{
		cfg: cfg, deps: deps, metrics: m,
		directory: directory.New(deps.Directory, deps.Rows, deps.Cause),
		refusals:  table,
		inboxes:   inbox.NewAll(),
		journal:   journal.New(),
		reply:     newID(),
		started:   time.Now(),
		empty:     make(chan struct{}, 1),
	}
	g.door, err = admission.New(admission.Config{Watermark: cfg.RefuseLaw == LawWatermark, MaxDeadline: cfg.MaxDeadline}, admission.Deps{
		Directory: g.directory, Records: deps.Records, Publish: deps.Publish, Reply: g.address,
		Discard: deps.Discard, Abort: deps.Abort, Direct: deps.Direct, Warn: g.warn,
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g.policy.Store(deps.Policy)
	state := "closed"
	g.mailState.Store(&state)
	g.mailbox = sync.OnceValues(g.openMailbox)
	g.routes()
	return g, nil
}

func (g *Gateway) openMailbox() (func(), error) {
	closeMailbox, err := g.deps.OpenMailbox(g.reply, g.inboxes.Handle)
	state := "open"
	if err != nil {
		state = err.Error()
	}
	g.mailState.Store(&state)
	return closeMailbox, err
}

// address is where the events of request id come to.
func (g *Gateway) address(id string) string {
	if g.deps.Address == nil {
		return g.reply
	}
	return g.deps.Address(g.reply, id)
}

func (g *Gateway) routes() {
	g.mux = http.NewServeMux()
	for path, kind := range map[string]string{
		"/v1/chat/completions": "chat",
		"/v1/completions":      "completion",
		"/v1/embeddings":       openai.Embedding,
	} {
		g.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { g.infer(w, r, path, kind) })
		g.mux.HandleFunc(path, g.wrongMethod("POST"))
	}
	g.mux.HandleFunc("GET /v1/models", g.serveModels)
	g.mux.HandleFunc("/v1/models", g.wrongMethod("GET"))
	g.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if g.draining.Load() {
			g.refuseEarly(w, &refuse.Refusal{Reason: reason.Draining})
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	g.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.refuseEarly(w, &refuse.Refusal{Reason: reason.NotFound, Detail: fmt.Sprintf("There is no %s here. Try /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/models.", headers.Cut(r.URL.Path))})
	})
}

func (g *Gateway) wrongMethod(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		g.refuseEarly(w, &refuse.Refusal{Reason: reason.NotFound, Status: http.StatusMethodNotAllowed, Detail: fmt.Sprintf("%s wants %s.", r.URL.Path, allowed)})
	}
}

// refuseEarly refuses a call that is no request for a model.
func (g *Gateway) refuseEarly(w http.ResponseWriter, f *refuse.Refusal) {
	status := g.refusals.Write(w, f)
	g.metrics.Refused(status, f.Reason)
}

// warn logs a call that failed, at most every warnEvery for one kind of call: when
// a store is away, every request meets it.
func (g *Gateway) warn(call string, err error) {
	now := time.Now()
	last, seen := g.warned.Swap(call, now)
	if seen && now.Sub(last.(time.Time)) < warnEvery {
		g.warned.Store(call, last)
		return
	}
	g.deps.Log.Warn("call failed", "call", call, "error", err)
}

// Handler serves clients without a listener of its own, for tests and embedding.
func (g *Gateway) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			// Also bounds what net/http writes after the handler. HTTP/2 bounds
			// that itself, and there a deadline would end a silent stream.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(g.cfg.WriteLimit))
		}
		g.mux.ServeHTTP(w, r)
	})
}

// Ready reports whether new requests are taken, and why not. Any goroutine may
// call it.
func (g *Gateway) Ready() (ready bool, why string) {
	switch {
	case g.draining.Load():
		return false, reason.Draining.String()
	case !g.serving.Load():
		return false, reason.Starting.String()
	default:
		return true, ""
	}
}

// Serve answers HTTP/1.1 and HTTP/2 (also without TLS) on l until ctx ends. Then
// it drains: new requests get 503 while the open ones finish, at most Config.Grace;
// what is left gets an error as its outcome and is cancelled. It returns when no
// request is left.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	closeMailbox, err := g.mailbox()
	if err != nil {
		return fmt.Errorf("gateway: open mailbox: %w", err)
	}
	defer closeMailbox()
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	server := &http.Server{
		Handler:           g.Handler(),
		ReadHeaderTimeout: headerWait,
		IdleTimeout:       idleWait,
		MaxHeaderBytes:    maxHeaders,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(g.deps.Log.Handler(), slog.LevelDebug),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		Protocols:         new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var late sync.WaitGroup
	defer late.Wait()
	mend, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	late.Go(func() { g.door.Run(mend) })
	g.serving.Store(true)
	defer g.serving.Store(false)
	g.deps.Log.Info("gateway listens", "address", g.cfg.Listen)
	select {
	case err = <-served: // the listener broke
		g.drain(cut, server)
		return errors.Join(fmt.Errorf("gateway: serve: %w", err), server.Close())
	case <-ctx.Done():
	}
	g.drain(cut, server)
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), closingWait)
	defer done()
	if err = server.Shutdown(closing); err != nil {
		err = server.Close()
	}
	<-served
	return err
}

// drain returns when no request is open: by themselves within the grace, else cut;
// a client that does not read its end loses its connection.
func (g *Gateway) drain(cut context.CancelCauseFunc, server *http.Server) {
	g.draining.Store(true)
	g.deps.Log.Info("gateway drains", "open", g.open.Load(), "grace", g.cfg.Grace)
	grace := time.NewTimer(g.cfg.Grace)
	defer grace.Stop()
	for g.open.Load() > 0 {
		select {
		case <-g.empty:
		case <-grace.C:
			g.deps.Log.Warn("gateway cuts open requests", "open", g.open.Load())
			cut(errCut)
			stuck := time.AfterFunc(closingWait, func() { _ = server.Close() })
			defer stuck.Stop()
		}
	}
}
