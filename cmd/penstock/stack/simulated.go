package stack

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"penstock/cmd/penstock/exit"
	"penstock/sim/engine"
	"penstock/vllm/simengine"
)

// Simulated is a simulated engine on its own listener.
type Simulated struct {
	server   *simengine.Server
	listener net.Listener
}

// NewSimulated opens address for an engine that Run serves. Errors are usage errors that
// name --listen.
func NewSimulated(address string, cfg simengine.Config) (*Simulated, error) {
	server, err := simengine.New(cfg)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	listener, err := listen("--listen", address)
	if err != nil {
		return nil, err
	}
	return &Simulated{server, listener}, nil
}

// URL is the engine's for --engine.
func (s *Simulated) URL() string { return "http://" + s.listener.Addr().String() }

// Stats is what the engine has done so far.
func (s *Simulated) Stats() engine.Stats { return s.server.Stats() }

// Run serves until ctx ends. Answers in progress are cut: so does a killed engine.
func (s *Simulated) Run(ctx context.Context) error {
	web := &http.Server{Handler: s.server.Handler(), ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group errgroup.Group
	group.Go(func() error { defer cancel(); return s.server.Run(ctx) })
	group.Go(func() error {
		defer cancel()
		if err := web.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error { <-ctx.Done(); return web.Close() })
	return group.Wait()
}
