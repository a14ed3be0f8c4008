//go:build e2e

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/agent"
	penstockfleet "penstock/fleet"
	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq"
	"penstock/reason"
	"penstock/registry"
	registryredis "penstock/registry/redis"
	"penstock/response"
	responseredis "penstock/response/redis"
	"penstock/vllm/simengine"
)

// engineRoom is simulated engines of one model in the test's process: it sees each
// request that reaches one of them.
type engineRoom struct {
	model string

	mu     sync.Mutex
	starts []start
}

// start is a request's arrival at an engine.
type start struct {
	at     time.Time
	prompt string
}

// engine starts one more engine of the room and returns its URL.
func (e *engineRoom) engine(t *testing.T) string {
	t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.Model = e.model
	server, err := simengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	background(t, server.Run)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			var asked struct{ Messages []struct{ Content string } }
			if err = errors.Join(err, json.Unmarshal(body, &asked)); err == nil && len(asked.Messages) > 0 {
				e.mu.Lock()
				e.starts = append(e.starts, start{time.Now(), asked.Messages[0].Content})
				e.mu.Unlock()
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		server.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// seen returns what has arrived so far, in its order.
func (e *engineRoom) seen() []start {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.starts)
}

// count is how many requests arrived from a to b.
func (e *engineRoom) count(a, b time.Time) (n int) {
	for _, s := range e.seen() {
		if !s.at.Before(a) && s.at.Before(b) {
			n++
		}
	}
	return n
}

// feed puts requests into lanes as a gateway does, without a client and without its
// door's patience, and notes the one outcome of each.
type feed struct {
	records  *registryredis.Registry
	producer *rocketmq.Producer
	reader   *responseredis.Reader
	model    string

	mu       sync.Mutex
	outcomes map[string][]reason.Reason // of each id, terminal events only
}

const feedName = "e2e"

func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(home, "test.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return slog.New(slog.NewTextHandler(f, nil))
}

// background runs a part until the test's end, and waits for it.
func background(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func registryConfig() registryredis.Config {
	cfg := registryredis.DefaultConfig()
	cfg.Addr, cfg.Live, cfg.ConfirmWait = addr(10), response.IncarnationKey, 0
	cfg.Deadline = 500 * time.Millisecond // hundreds at once, on a machine that is full
	cfg.Terminal = func(id, attempt string, why reason.Reason) []byte {
		return response.Append(nil, &response.Event{ID: id, Attempt: attempt, Seq: 1, Kind: response.Failed, Reason: why})
	}
	return cfg
}

func rocketmqConfig(r *registryredis.Registry) rocketmq.Config {
	cfg := rocketmq.DefaultConfig()
	cfg.Endpoint, cfg.Clock, cfg.PublishTimeout = addr(5), r.Offset, 10*time.Second
	return cfg
}

func responseConfig() responseredis.Config {
	cfg := responseredis.DefaultConfig()
	cfg.Addr = addr(10)
	return cfg
}

// newFeed is ready when it returns; the lanes it makes have width shards.
func newFeed(t *testing.T, model string, width int) *feed {
	t.Helper()
	log, metrics := testLog(t), prometheus.NewRegistry()
	d := &feed{model: model, outcomes: map[string][]reason.Reason{}}
	var err error
	cfg := registryConfig()
	cfg.Width = width
	if d.records, err = registryredis.New(cfg, log, metrics); err != nil {
		t.Fatal(err)
	}
	if d.producer, err = rocketmq.NewProducer(rocketmqConfig(d.records), log, metrics); err != nil {
		t.Fatal(err)
	}
	if d.reader, err = responseredis.NewReader(responseConfig(), log, metrics); err != nil {
		t.Fatal(err)
	}
	background(t, d.records.Run)
	background(t, d.producer.Run)
	background(t, d.reader.Run)
	closeBox, err := d.reader.Open(feedName, func(e response.Event) {
		if e.Kind.Terminal() {
			d.mu.Lock()
			d.outcomes[e.ID] = append(d.outcomes[e.ID], e.Reason)
			d.mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeBox)
	eventually(t, 20*time.Second, func() string {
		for _, ready := range []func() (bool, string){d.records.Ready, d.producer.Ready} {
			if ok, why := ready(); !ok {
				return why
			}
		}
		return ""
	})
	return d
}

// put opens the record of one request and publishes it; it answers the shard.
func (d *feed) put(ctx context.Context, tenant, prompt string) (shard int, err error) {
	id := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	d.mu.Lock()
	d.outcomes[id] = nil
	d.mu.Unlock()
	a := ask{prompt: prompt, tokens: 1}
	m := &queue.Message{
		Version: queue.Version, ID: id, Lane: lane.Key{Tier: "default", Type: "chat", Model: d.model, Tenant: tenant},
		Path: "/v1/chat/completions", Opened: time.Now(), Deadline: time.Now().Add(9 * time.Minute), SLOTTFT: 9 * time.Minute, SLOTPOT: time.Second,
		PromptTokens: 20, ExpectedOut: a.tokens, MaxTokens: a.tokens, Sequences: 1, Reply: d.reader.Address(feedName, id), Body: []byte(a.body(d.model)),
	}
	var admitted registry.Admission
	for range 20 { // an id that is open already is told so
		admitted, err = d.records.Open(ctx, registry.Request{
			ID: id, Lane: m.Lane, Reply: m.Reply, Deadline: m.Deadline, Tokens: m.Tokens(), Bytes: len(m.Body), Limit: 9 * time.Minute,
		}, registry.Drain{Engines: 1})
		if !errors.Is(err, registry.ErrAway) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	if admitted.Reason != reason.OK {
		return 0, fmt.Errorf("the door says %s", admitted.Reason)
	}
	m.Shard = admitted.Shard
	return m.Shard, d.producer.Publish(ctx, m)
}

// open is how many have no outcome yet; wrong names the first that ended otherwise
// than once and whole.
func (d *feed) open() (open int, wrong string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, ends := range d.outcomes {
		switch {
		case len(ends) == 0:
			open++
		case len(ends) > 1 || ends[0] != reason.Finished:
			wrong = fmt.Sprintf("%s ended as %v", id, ends)
		}
	}
	return open, wrong
}

// settled waits until every request that was put has its one whole answer.
func (d *feed) settled(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	return eventually(t, within, func() string {
		open, wrong := d.open()
		if wrong != "" {
			t.Fatal(wrong)
		}
		if open > 0 {
			return fmt.Sprintf("%d requests have no outcome", open)
		}
		return ""
	})
}

// hosted is an agent in the test's process.
type hosted struct {
	node, engine string
	pace         func(lane.Key) float64
	between      func(queue.Handler) queue.Handler // stands between broker and agent; nil: nothing
}

// consumer is the broker's with something between.
type consumer struct {
	*rocketmq.Consumer
	between func(queue.Handler) queue.Handler
}

func (c consumer) Run(ctx context.Context, h queue.Handler) error {
	return c.Consumer.Run(ctx, c.between(h))
}

// host runs an agent wired as cmd/penstock does, until the test's end.
func host(t *testing.T, h hosted) {
	t.Helper()
	log, metrics := testLog(t).With("node", h.node), prometheus.NewRegistry()
	registryCfg := registryConfig()
	registryCfg.Pace = h.pace
	records, err := registryredis.New(registryCfg, log, metrics)
	if err != nil {
		t.Fatal(err)
	}
	mail, err := responseredis.NewWriter(responseConfig(), log, metrics)
	if err != nil {
		t.Fatal(err)
	}
	rocketmqCfg := rocketmqConfig(records)
	rocketmqCfg.Node = h.node
	rocketmqCfg.Confirmed = func(lanes []lane.Key) { _ = records.Confirm(context.Background(), h.node, lanes) }
	lanes, err := rocketmq.NewConsumer(rocketmqCfg, log, metrics)
	if err != nil {
		t.Fatal(err)
	}
	if h.between == nil {
		h.between = func(inner queue.Handler) queue.Handler { return inner }
	}
	cfg := agent.DefaultConfig()
	cfg.Node = h.node
	cfg.SetEngine(h.engine)
	node, err := agent.New(cfg, agent.Deps{
		Records: records, Directory: records, Consumer: consumer{lanes, h.between}, Append: mail.Append, Flush: mail.Flush,
		Peers: func() []penstockfleet.Row { return nil }, Metrics: metrics, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	background(t, mail.Run)
	background(t, records.Run)
	background(t, func(ctx context.Context) error { return records.Watch(ctx, lanes.SetLanes) })
	background(t, node.Run) // ends first
	eventually(t, 20*time.Second, func() string {
		if ok, why := lanes.Ready(); !ok {
			return why
		}
		return ""
	})
}
