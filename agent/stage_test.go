package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/agent/attempt"
	"penstock/agent/engine"
	"penstock/queue"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
	"penstock/scheduler"
	"penstock/vllm"
)

// fakeEngine is an engine under a test's hand: every request it gets is an upcall
// that the test answers, and its page says what the test set.
type fakeEngine struct {
	n     *node
	calls chan *upcall

	mu     sync.Mutex // guards all below
	sample scheduler.Sample
	away   bool  // no sample
	still  bool  // counters do not move
	dead   bool  // says /health
	refuse error // what every new request gets
	models []vllm.Model
}

// upcall is one request at the engine.
type upcall struct {
	vllm.Request
	ctx    context.Context
	say    chan vllm.Chunk
	fail   chan error
	answer chan vllm.Answer
}

// onStage is a test of that name on fake time, with the agent of newStage, ready.
func onStage(t *testing.T, name string, test func(t *testing.T, n *node)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newStage(t).run()) })
	})
}

// streams is a request at the engine that has its first token.
func (n *node) streams(change ...func(*queue.Message)) (*queue.Message, *upcall) {
	m := n.send(n.message(4, change...))
	c := <-n.fake.calls
	c.token(1)
	return m, c
}

// serves sends m, which is to be done.
func (n *node) serves(m *queue.Message) {
	n.t.Helper()
	n.send(m)
	c := <-n.fake.calls
	c.token(1)
	c.done()
	if e := n.outcome(m.ID); e.Kind != response.Done {
		n.t.Errorf("request after it: got %+v, want done", e)
	}
}

func newFakeEngine(n *node) *fakeEngine {
	return &fakeEngine{
		n: n, calls: make(chan *upcall, 1024), models: []vllm.Model{{ID: "q", MaxModelLen: 8192}},
		sample: scheduler.Sample{KVTokens: 65536, Ranks: 1},
	}
}

func (f *fakeEngine) set(change func(*fakeEngine)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeEngine) upstream() engine.Engine {
	return engine.Engine{
		Dead: func(context.Context) (bool, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.dead, nil
		},
		Models: func(context.Context) ([]vllm.Model, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.models) == 0 {
				return nil, errors.New("no models")
			}
			return f.models, nil
		},
		Probe: func(context.Context, string) error { return nil },
		Engine: attempt.Engine{
			Stream: func(ctx context.Context, r vllm.Request) (attempt.Tokens, error) {
				c, err := f.open(ctx, r)
				if err != nil {
					return nil, err
				}
				return c, nil
			},
			Do: func(ctx context.Context, r vllm.Request) (vllm.Answer, error) {
				c, err := f.open(ctx, r)
				if err != nil {
					return vllm.Answer{}, err
				}
				select {
				case a := <-c.answer:
					return a, nil
				case err := <-c.fail:
					return vllm.Answer{}, err
				case <-ctx.Done():
					return vllm.Answer{}, aborted(ctx)
				}
			},
		},
	}
}

func (f *fakeEngine) open(ctx context.Context, r vllm.Request) (*upcall, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	c := &upcall{Request: r, ctx: ctx, say: make(chan vllm.Chunk), fail: make(chan error), answer: make(chan vllm.Answer)}
	f.calls <- c
	return c, nil
}

// scrape makes a sample every 50 ms, as the scraper does.
func (f *fakeEngine) scrape(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		f.mu.Lock()
		if !f.still {
			f.sample.Steps++
		}
		s, away := f.sample, f.away
		f.sample.Restarted = false
		f.mu.Unlock()
		s.At = time.Now()
		s.Asked = s.At
		if away {
			f.n.agent.bad(s.At, errors.New("page away"))
		} else {
			f.n.agent.observe(s)
		}
	}
}

func aborted(ctx context.Context) error {
	return &vllm.Error{Reason: reason.Aborted, Err: context.Cause(ctx)}
}

func (c *upcall) Next() (vllm.Chunk, error) {
	select {
	case chunk := <-c.say:
		return chunk, nil
	case err := <-c.fail:
		return vllm.Chunk{}, err
	case <-c.ctx.Done():
		return vllm.Chunk{}, aborted(c.ctx)
	}
}

func (c *upcall) Close() {}

// token sends the i-th token; done the end of the stream.
func (c *upcall) token(i int) {
	c.say <- vllm.Chunk{Bytes: fmt.Appendf(nil, "data: %d\n\n", i), Usage: vllm.Usage{Prompt: 10, Output: i, Known: true}}
}

func (c *upcall) done() {
	c.say <- vllm.Chunk{Bytes: []byte("data: [DONE]\n\n"), Done: true, Usage: vllm.Usage{Prompt: 10, Output: 1, Known: true}}
}

// store is the record store with faults, and a log of the calls that end or give
// back an attempt.
type store struct {
	registry.Records
	mu   sync.Mutex // guards all below
	away bool       // every call fails
	log  []string
	// deaf calls get an answer that the store never heard of.
	claim func(registry.Claim) registry.Claim
	lose  bool // Renew loses everything
}

var errAway = fmt.Errorf("test: %w", registry.ErrAway)

func (s *store) set(change func(*store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *store) call(format string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	if format != "" {
		s.log = append(s.log, fmt.Sprintf(format, args...))
	}
	return nil
}

func (s *store) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.log...)
}

func (s *store) Claim(ctx context.Context, r registry.Start) (registry.Claim, error) {
	if err := s.call(""); err != nil {
		return registry.Claim{}, err
	}
	c, err := s.Records.Claim(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim != nil {
		c = s.claim(c)
	}
	return c, err
}

func (s *store) Renew(ctx context.Context, owner string, refs []registry.Ref) ([]registry.Ref, error) {
	if err := s.call(""); err != nil {
		return nil, err
	}
	s.mu.Lock()
	lose := s.lose
	s.mu.Unlock()
	if lose {
		return refs, nil
	}
	return s.Records.Renew(ctx, owner, refs)
}

func (s *store) First(ctx context.Context, id, attempt string, event []byte) (bool, error) {
	if err := s.call(""); err != nil {
		return false, err
	}
	return s.Records.First(ctx, id, attempt, event)
}

func (s *store) Finish(ctx context.Context, id, attempt string, event []byte, used quota.Usage) (bool, error) {
	e, err := response.Parse(event)
	if err != nil {
		return false, err
	}
	if err := s.call("finish %s %s", kinds[e.Kind], e.Reason); err != nil {
		return false, err
	}
	return s.Records.Finish(ctx, id, attempt, event, used)
}

var kinds = map[response.Kind]string{response.Done: "done", response.Failed: "failed", response.Dropped: "dropped"}

func (s *store) Release(ctx context.Context, id, attempt string, blameless bool) error {
	if err := s.call("release blameless=%v", blameless); err != nil {
		return err
	}
	return s.Records.Release(ctx, id, attempt, blameless)
}
