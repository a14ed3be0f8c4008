package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"penstock/fleet"
	"penstock/queue"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	registrymemory "penstock/registry/memory"
	"penstock/response"
	responsememory "penstock/response/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const chatPath = "/v1/chat/completions"

// stage is everything behind the gateway, real but for the lanes and the engine:
// a test takes a published message and plays the node that runs it.
type stage struct {
	t       *testing.T
	g       *Gateway
	records *registrymemory.Registry
	bus     *responsememory.Bus
	queued  chan *queue.Message
	log     lockedBuffer
	metrics *prometheus.Registry
	url     string
	stop    context.CancelFunc
	served  chan error
	client  *http.Client // the last that asked

	mu        sync.Mutex
	canceled  []string // ids whose owner was told
	discarded []string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newStage builds a gateway with one live engine "n1" that serves model "q".
func newStage(t *testing.T, change func(*Config, *Deps)) *stage {
	t.Helper()
	s := &stage{t: t, bus: responsememory.New(), queued: make(chan *queue.Message, 64), metrics: prometheus.NewRegistry()}
	rc := registrymemory.DefaultConfig()
	rc.Terminal = func(id, attempt string, why reason.Reason) []byte {
		return response.Append(nil, &response.Event{ID: id, Attempt: attempt, Seq: 1, Kind: response.Failed, Reason: why})
	}
	var err error
	s.records, err = registrymemory.New(rc, s.bus.Append, func(owner, id, _ string) {
		if owner != "" {
			s.mu.Lock()
			s.canceled = append(s.canceled, id)
			s.mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.records.PutEngine(t.Context(), registry.Engine{Node: "n1", GRPC: "n1:4781", Models: []string{"q"}, MaxModelLen: 4096, State: reason.OK}); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	deps := Deps{
		Records: s.records, Directory: s.records, OpenMailbox: s.bus.Open, Metrics: s.metrics,
		Publish: func(_ context.Context, m *queue.Message) error { s.queued <- m; return nil },
		Discard: func(id string) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.discarded = append(s.discarded, id)
			return true
		},
		Rows: func() []fleet.Row {
			return []fleet.Row{{Node: "n1", Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, FirstToken: 50 * time.Millisecond, At: time.Now()}}
		},
		Log: slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg, &deps)
	}
	if s.g, err = New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve puts the gateway on a loopback port until the test ends.
func (s *stage) serve() *stage {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.url, s.stop, s.served = "http://"+l.Addr().String(), stop, make(chan error, 1)
	go func() { s.served <- s.g.Serve(ctx, l); close(s.served) }()
	s.t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if s.client != nil {
			s.client.CloseIdleConnections()
		}
		stop()
		if err := <-s.served; err != nil {
			s.t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func (s *stage) post(body string, headers ...string) *http.Response {
	s.t.Helper()
	resp, err := s.do(s.t.Context(), http.DefaultClient, body, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (s *stage) do(ctx context.Context, c *http.Client, body string, headers ...string) (*http.Response, error) {
	s.client = c
	req, err := http.NewRequestWithContext(ctx, "POST", s.url+chatPath, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return c.Do(req)
}

// node plays the agent that runs one message.
type node struct {
	s   *stage
	m   *queue.Message
	w   *response.Writer
	id  string
	att string
}

// message waits for the next published request.
func (s *stage) message() *queue.Message {
	s.t.Helper()
	select {
	case m := <-s.queued:
		return m
	case <-time.After(5 * time.Second):
		s.t.Fatal("nothing was published within 5 s")
		return nil
	}
}

// start claims the next published request.
func (s *stage) start() *node { return s.claim(s.message()) }

func (s *stage) claim(m *queue.Message) *node {
	s.t.Helper()
	attempt := newID()
	c, err := s.records.Claim(context.Background(), registry.Start{ID: m.ID, Attempt: attempt, Owner: "n1", Lane: m.Lane, Deadline: m.Deadline, Reply: m.Reply, Tokens: m.Tokens()})
	if err != nil || c.Action != registry.Run {
		s.t.Fatalf("claim = %+v, %v, want run", c, err)
	}
	return &node{s: s, m: m, w: response.NewWriter(m.ID, attempt, m.Reply, s.bus.Append), id: m.ID, att: attempt}
}

func (n *node) encode(e response.Event) []byte {
	n.s.t.Helper()
	e.Node, e.Tries, e.Queued = "n1", 1, 12*time.Millisecond
	b, err := n.w.Encode(e)
	if err != nil {
		n.s.t.Fatal(err)
	}
	return b
}

func (n *node) first(payload string) {
	n.s.t.Helper()
	if ok, err := n.s.records.First(context.Background(), n.id, n.att, n.encode(response.Event{Kind: response.First, Status: 200, Payload: []byte(payload)})); !ok || err != nil {
		n.s.t.Fatalf("first = %v, %v", ok, err)
	}
}

func (n *node) send(kind response.Kind, payload string) {
	n.s.t.Helper()
	if err := n.w.Append(response.Event{Kind: kind, Payload: []byte(payload)}); err != nil {
		n.s.t.Fatal(err)
	}
}

func (n *node) finish(e response.Event) {
	n.s.t.Helper()
	if ok, err := n.s.records.Finish(context.Background(), n.id, n.att, n.encode(e), quota.Usage{Prompt: e.Usage.Prompt, Output: e.Usage.Output, Known: e.Usage.Known}); !ok || err != nil {
		n.s.t.Fatalf("finish = %v, %v", ok, err)
	}
}

func (n *node) done(payload string) {
	n.s.t.Helper()
	n.finish(response.Event{Kind: response.Done, Status: 200, Reason: reason.Finished, Payload: []byte(payload), Usage: response.Usage{Prompt: 7, Output: 2, Known: true}})
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read body: %v (after %q)", err, b)
	}
	return string(b)
}

// eventually waits until ok, for what has no signal of its own.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// errorOf decodes an OpenAI error body.
func errorOf(t *testing.T, body string) (message, kind, code string) {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("error body %q: %v", body, err)
	}
	return e.Error.Message, e.Error.Type, e.Error.Code
}

const (
	streamBody = `{"model":"q","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":8}`
	plainBody  = `{"model":"q","messages":[{"role":"user","content":"hi"}],"max_tokens":8}`
	chunk1     = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	chunk2     = "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"
	doneEvent  = "data: [DONE]\n\n"
)
