package demo

import (
	"context"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/stack"
	"penstock/gateway"
	"penstock/load"
	"penstock/scheduler"
	"penstock/vllm/simengine"
)

// rig is what a demo runs: engines, and penstock in front of some of them.
type rig struct {
	ctx   context.Context // ends when a part of it does
	stop  context.CancelFunc
	group errgroup.Group
	log   *slog.Logger
}

func newRig(ctx context.Context, stderr io.Writer) *rig {
	r := &rig{log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
	r.ctx, r.stop = context.WithCancel(ctx)
	return r
}

// end stops everything and returns when all has ended.
func (r *rig) end() error {
	r.stop()
	return r.group.Wait()
}

func (r *rig) run(p func(context.Context) error) {
	r.group.Go(func() error { defer r.stop(); return p(r.ctx) })
}

// engine starts a simulated engine.
func (r *rig) engine(cfg simengine.Config) (*stack.Simulated, error) {
	sim, err := stack.NewSimulated("127.0.0.1:0", cfg)
	if err == nil {
		r.run(sim.Run)
	}
	return sim, err
}

// behind starts a simulated engine and penstock in front of it, with a policy's file
// or, "", none, and returns once it is ready.
func (r *rig) behind(cfg simengine.Config, policy string) (sim *stack.Simulated, url string, err error) {
	if sim, err = r.engine(cfg); err != nil {
		return nil, "", err
	}
	s, err := stack.NewStandalone(&flags.Options{
		Engines: []string{sim.URL()}, Listen: "127.0.0.1:0", GRPC: "127.0.0.1:0", Admin: "127.0.0.1:0", PolicyFile: policy,
		SLOTTFT: load.DefaultSLO.TTFT, RefuseLaw: gateway.LawRate, Law: scheduler.DefaultConfig().Law, Grace: 5 * time.Second,
	}, r.log)
	if err != nil {
		return nil, "", err
	}
	ready := make(chan struct{})
	s.OnReady = func(string) { close(ready) }
	r.run(s.Run)
	select {
	case <-ready:
		return sim, "http://" + s.Address(), nil
	case <-r.ctx.Done():
		return nil, "", r.ctx.Err()
	}
}
