// Command scheduler-example is a scheduler of your own on top of penstock's agents: it
// reads their health and state over gRPC and prints, once a second, which engine it
// would send the next request to.
//
//	go run ./docs/scheduler-example -model llama gpu1:4781 gpu2:4781
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	penstockv1 "penstock/proto/penstock/v1"
)

// silent is from when an agent that says nothing does not count: it sends at least
// once per second.
const silent = 3 * time.Second

// again is how long a stream that broke waits for its next try.
const again = time.Second

// Scheduler knows the engines behind some agents, for one model.
type Scheduler struct {
	model string

	mu     sync.Mutex
	agents map[string]*agent // by address
}

// agent is what one process last said.
type agent struct {
	serving bool // its health service of the model's name: down at once, up after three good samples
	engines []*penstockv1.EngineState
	heard   time.Time
}

// New returns a scheduler that knows nothing yet; Run lets it learn.
func New(model string) *Scheduler {
	return &Scheduler{model: model, agents: map[string]*agent{}}
}

// Pick names the engine with the most room, and its agent's address. Health says who
// may be used at all, the gate who takes work now. No engine: come back later.
func (s *Scheduler) Pick(now time.Time) (node, address string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := int32(0)
	for at, a := range s.agents {
		if !a.serving || now.Sub(a.heard) > silent {
			continue
		}
		for _, e := range a.engines {
			if e.GetReady() && e.GetGate() == "ok" && e.GetFreeTokens() > most && slices.Contains(e.GetModels(), s.model) {
				node, address, ok, most = e.GetNode(), at, true, e.GetFreeTokens()
			}
		}
	}
	return node, address, ok
}

// Run follows the agents at addresses until ctx ends.
func (s *Scheduler) Run(ctx context.Context, addresses ...string) error {
	var streams sync.WaitGroup
	defer streams.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())) // health and state are open
		if err != nil {
			return err
		}
		defer conn.Close()
		a := &agent{}
		s.mu.Lock()
		s.agents[address] = a
		s.mu.Unlock()
		streams.Go(func() { repeat(ctx, func() { s.followHealth(ctx, conn, a) }) })
		streams.Go(func() { repeat(ctx, func() { s.followState(ctx, conn, a) }) })
	}
	<-ctx.Done()
	return nil
}

// repeat calls follow, which returns when its stream breaks, until ctx ends.
func repeat(ctx context.Context, follow func()) {
	for ctx.Err() == nil {
		follow()
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

func (s *Scheduler) followHealth(ctx context.Context, conn *grpc.ClientConn, a *agent) {
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: s.model})
	for err == nil {
		var r *healthpb.HealthCheckResponse
		r, err = stream.Recv()
		s.mu.Lock()
		a.serving = err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
		s.mu.Unlock()
	}
}

func (s *Scheduler) followState(ctx context.Context, conn *grpc.ClientConn, a *agent) {
	stream, err := penstockv1.NewAgentServiceClient(conn).WatchState(ctx, &penstockv1.WatchStateRequest{})
	for err == nil {
		var r *penstockv1.WatchStateResponse
		if r, err = stream.Recv(); err == nil {
			s.mu.Lock()
			a.engines, a.heard = r.GetEngines(), time.Now()
			s.mu.Unlock()
		}
	}
}

func main() {
	model := flag.String("model", "", "model to schedule for")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := New(*model)
	go func() {
		for range time.Tick(time.Second) {
			if node, address, ok := s.Pick(time.Now()); ok {
				fmt.Println("next request to", node, "at", address)
			} else {
				fmt.Println("no engine takes work now")
			}
		}
	}()
	if err := s.Run(ctx, flag.Args()...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
