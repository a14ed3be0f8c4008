// Package vllmtest is a vLLM for tests: vllm/simengine behind a real loopback
// listener, with faults that can be switched on and off while it serves, the odd
// metrics pages of other versions and front ends, and a look at what it saw.
package vllmtest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/sim/engine"
	"penstock/vllm/simengine"
)

// Engine is one engine under test. Its address stays the same over Stop and Restart.
type Engine struct {
	tb      testing.TB
	cfg     simengine.Config
	address string

	faults        atomic.Uint64
	dialect       atomic.Uint64
	delay         atomic.Int64 // ns before every answer of the API
	metricsDelay  atomic.Int64 // ns before every metrics page
	requests      atomic.Int64
	scrapes       atomic.Int64
	eventsToBreak atomic.Int64

	mu     sync.Mutex // guards server and stop
	server *simengine.Server
	stop   func()
}

// Option changes the engine that Start makes.
type Option func(*Engine)

// WithConfig edits the simulated server's config.
func WithConfig(edit func(*simengine.Config)) Option { return func(e *Engine) { edit(&e.cfg) } }

// WithStep sets the time of every engine step, 1 ms otherwise.
func WithStep(d time.Duration) Option {
	return WithConfig(func(c *simengine.Config) { c.Engine.Base = d })
}

// WithBlocks sets the size of the KV pool in blocks of 32 tokens, the null block included.
func WithBlocks(n int) Option {
	return WithConfig(func(c *simengine.Config) {
		c.Engine.Blocks = n
		c.Engine.MaxModelLen = min(c.Engine.MaxModelLen, c.Engine.Capacity())
	})
}

// WithDialect serves another version's metrics page.
func WithDialect(d Dialect) Option { return func(e *Engine) { e.SetDialect(d) } }

// DefaultConfig is the engine that the captured answers come from: model tiny, one
// byte per token, 65 blocks of 32 tokens, context 1024, 16 seats; steps of 1 ms.
func DefaultConfig() simengine.Config {
	c := simengine.DefaultConfig()
	c.Model = "tiny"
	c.BytesPerToken = 1
	c.Engine = engine.Config{
		Blocks: 65, BlockSize: 32, MaxModelLen: 1024, MaxSeqs: 16, MaxBatchedTokens: 1024,
		FullPromptGate: true, Base: time.Millisecond,
	}
	return c
}

// Start starts an engine that is gone when the test ends.
func Start(tb testing.TB, options ...Option) *Engine {
	tb.Helper()
	e := &Engine{tb: tb, cfg: DefaultConfig(), address: "127.0.0.1:0"}
	e.eventsToBreak.Store(3)
	for _, o := range options {
		o(e)
	}
	e.Restart()
	tb.Cleanup(e.Stop)
	return e
}

// URL is the engine's base, without a slash.
func (e *Engine) URL() string { return "http://" + e.address }

// Stop is the death of the whole server: every connection is cut, new ones are refused.
func (e *Engine) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

// Restart starts a new process at the same address: counters from 0, nothing in
// flight, an engine that had died alive again. Other faults stay.
func (e *Engine) Restart() {
	e.tb.Helper()
	e.Stop()
	e.faults.And(^uint64(EngineDead))
	server, err := simengine.New(e.cfg)
	if err != nil {
		e.tb.Fatal(err)
	}
	listener, err := net.Listen("tcp", e.address)
	if err != nil {
		e.tb.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		e.address = listener.Addr().String()
	}
	e.server = server
	e.stop = e.serve(server, listener)
	e.apply()
}

// serve runs a server until the returned func ends it. Handlers may outlive that
// by a moment: their connections are cut, so they return by themselves.
func (e *Engine) serve(server *simengine.Server, listener net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	web := &http.Server{Handler: e.broken(server), ReadHeaderTimeout: time.Minute}
	ran := make(chan struct{}, 2)
	go func() {
		if err := server.Run(ctx); err != nil {
			e.tb.Error(err)
		}
		ran <- struct{}{}
	}()
	go func() {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			e.tb.Error(err)
		}
		ran <- struct{}{}
	}()
	return func() {
		_ = web.Close() // the listener first: whoever is cut finds it refused
		cancel()
		<-ran
		<-ran
	}
}

func (e *Engine) current() *simengine.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

// Running is the gauge of running sequences, as published.
func (e *Engine) Running() int { return e.Stats().Running }

// Waiting is the gauge of waiting sequences, as published.
func (e *Engine) Waiting() int { return e.Stats().Waiting }

// InFlight is the true number of sequences in the engine.
func (e *Engine) InFlight() int { return e.current().InFlight() }

// Requests is how many POSTs came, over all restarts, refused ones included.
func (e *Engine) Requests() int { return int(e.requests.Load()) }

// Scrapes is how many metrics pages were asked for, over all restarts.
func (e *Engine) Scrapes() int { return int(e.scrapes.Load()) }

// Aborts is how many sequences were aborted since the last restart.
func (e *Engine) Aborts() int { return int(e.Stats().Aborted) }

// PeakWaiting is the highest value of the waiting gauge since the last restart.
func (e *Engine) PeakWaiting() int { return e.Stats().PeakWaiting }

// Wasted is the tokens computed for nothing since the last restart: for sequences
// then aborted, and again after a preemption.
func (e *Engine) Wasted() int {
	s := e.Stats()
	return int(s.TokensAborted + s.TokensRecomputed)
}

// Stats is all of it, since the last restart.
func (e *Engine) Stats() engine.Stats { return e.current().Stats() }

// waitLimit is how long WaitFor waits before the test fails.
const waitLimit = 5 * time.Second

// WaitFor returns once a condition holds, and fails the test after 5 s.
func (e *Engine) WaitFor(what string, condition func() bool) {
	e.tb.Helper()
	deadline := time.Now().Add(waitLimit)
	for !condition() {
		if time.Now().After(deadline) {
			e.tb.Fatalf("waited %v for %s; engine: %+v", waitLimit, what, e.Stats())
		}
		time.Sleep(time.Millisecond)
	}
}
