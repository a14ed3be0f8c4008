// Package simengine is sim/engine behind vLLM's HTTP interface, in real time: the
// routes, bodies, errors and metrics page of vLLM 0.32, without a GPU. It serves
// `--engine sim`, demos and, through vllm/vllmtest, the tests.
package simengine

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"penstock/sim/engine"
)

// maxLag is how far the steps may run behind the wall clock and still catch up.
const maxLag = 50 * time.Millisecond

// Server is one simulated vLLM. Steps happen only while Run runs.
type Server struct {
	cfg     Config
	started time.Time
	wake    chan struct{} // size 1: something to do, or a state has changed

	mu      sync.Mutex // guards all below and the fields of call that say so
	engine  *engine.Engine
	tracks  map[uint64]*track
	nextID  uint64
	calls   uint64 // requests for the engine that were valid, refused by a cap or not
	settled bool   // nothing was submitted since the last step began
	frozen  bool
	asleep  int // vLLM's sleep level, 0 = awake
	failure *apiError
	metrics metrics
}

// track is one sequence of a call.
type track struct {
	call       *call
	id         uint64
	prompt     int // index into call.prompts
	output     int // tokens to produce
	stops      bool
	text       uint64 // seed of its text
	produced   int    // guarded by Server.mu, as over and last
	over       bool
	arrived    time.Time
	last       time.Time // when the last token came
	promptSize int
}

// New makes a server that serves nothing yet.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e, err := engine.New(cfg.Engine)
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg:     cfg,
		started: time.Now(),
		wake:    make(chan struct{}, 1),
		engine:  e,
		tracks:  make(map[uint64]*track),
		settled: true,
		metrics: newMetrics(cfg),
	}, nil
}

// Run steps the engine on wall time until ctx ends; what is in flight then fails
// as it does when vLLM is stopped. Every step has an absolute deadline, so late
// timers don't add up.
func (s *Server) Run(ctx context.Context) error {
	defer s.Fail()
	var due time.Time // when the last step should have ended
	for {
		took, ok := s.begin()
		if !ok {
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			}
			due = time.Now()
			continue
		}
		if now := time.Now(); due.Before(now.Add(-maxLag)) {
			due = now
		}
		due = due.Add(took)
		if !sleep(ctx, time.Until(due)) {
			return nil
		}
		for !s.end() {
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// begin starts a step if there is one to do.
func (s *Server) begin() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped() || s.engine.Idle() {
		return 0, false
	}
	s.settled = true
	return s.engine.Begin(), true
}

// end finishes the step, unless the engine has been stopped within it.
func (s *Server) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped() {
		return false
	}
	s.deliver(time.Now(), s.engine.End())
	return true
}

func (s *Server) stopped() bool { return s.frozen || s.asleep > 0 || s.failure != nil }

// deliver hands a step's outputs to their calls and records them.
func (s *Server) deliver(now time.Time, events []engine.Event) {
	for _, ev := range events {
		t := s.tracks[ev.ID]
		if t == nil {
			continue // its client had gone
		}
		if ev.Kind != engine.Aborted {
			s.metrics.observe(now, t, ev)
		}
		t.produced, t.last = ev.Output, now
		if ev.Kind != engine.Token {
			t.over = true
			delete(s.tracks, ev.ID)
		}
		t.call.nudge()
	}
	s.metrics.step(s.engine.Stats())
}

func (s *Server) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// submit hands a call's sequences to the engine, all or none.
func (s *Server) submit(c *call) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return s.failure
	}
	requests := make([]engine.Request, len(c.tracks))
	for i, t := range c.tracks {
		s.nextID++
		t.id, t.arrived = s.nextID, time.Now()
		requests[i] = engine.Request{ID: t.id, Prompt: t.promptSize, Output: t.output}
	}
	if err := s.engine.Submit(requests...); err != nil {
		if errors.Is(err, engine.ErrQueuedReqs) || errors.Is(err, engine.ErrQueuedTokens) {
			return errBusy
		}
		return &apiError{Status: http.StatusInternalServerError, Type: "InternalServerError", Message: err.Error()}
	}
	for _, t := range c.tracks {
		s.tracks[t.id] = t
	}
	s.settled = false
	s.nudge()
	return nil
}

// abandon aborts what is left of a call whose client has gone.
func (s *Server) abandon(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range c.tracks {
		if !t.over {
			s.engine.Abort(t.id)
			delete(s.tracks, t.id)
		}
	}
	s.nudge()
}

// Freeze hangs the engine while the HTTP side lives on: no step ends, no gauge
// moves, no abort acts, /health stays 200; or lets it go on.
func (s *Server) Freeze(on bool) {
	s.mu.Lock()
	s.frozen = on
	s.mu.Unlock()
	s.nudge()
}

// Sleep sets vLLM's sleep level: 0 awake, 1 weights offloaded, 2 all discarded.
// Asleep the engine makes no step.
func (s *Server) Sleep(level int) {
	s.mu.Lock()
	s.asleep = min(max(level, 0), 2)
	s.mu.Unlock()
	s.nudge()
}

// Fail ends everything in flight with an HTTP 500, or an error event where the
// answer has begun, and answers so from now on: the engine's process is dead, the
// HTTP side is not.
func (s *Server) Fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return
	}
	s.failure = errDead
	for id, t := range s.tracks {
		t.call.failed = s.failure
		delete(s.tracks, id)
		t.call.nudge()
	}
}

// Stats are the engine's gauges as published and its counters.
func (s *Server) Stats() engine.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Stats()
}

// InFlight is the number of sequences the engine has not done with, visible in a
// gauge or not.
func (s *Server) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.InFlight()
}

// Requests is the number of valid requests for the engine so far.
func (s *Server) Requests() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}
