// Package engine is what an agent asks its engine beside the metrics page: what it
// serves, whether its process is dead, and requests.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"penstock/agent/attempt"
	"penstock/vllm"
)

const (
	// modelsEvery is how often the engine is asked what it serves: adapters come and
	// go while it runs.
	modelsEvery = 10 * time.Second
	// modelsAgain is how soon it is asked again while it has never answered, and
	// askWithin bounds one call.
	modelsAgain, askWithin = time.Second, 2 * time.Second
)

// errNoModels is an engine that is up and serves nothing.
var errNoModels = errors.New("it names no model")

// Engine is the vLLM client as the agent uses it: a seam for tests.
type Engine struct {
	Models func(context.Context) ([]vllm.Model, error)
	Dead   func(context.Context) (bool, error)
	Probe  func(ctx context.Context, model string) error
	attempt.Engine
}

// New asks c.
func New(c *vllm.Client) Engine {
	return Engine{Models: c.Models, Dead: c.Dead, Probe: c.ProbeUsage, Engine: attempt.NewEngine(c)}
}

// Served is what the engine serves, or why it did not say.
type Served struct {
	Models  []string // sorted; whoever is told keeps it and changes nothing
	Longest int      // max_model_len; 0 = not known
	Err     error    // why it did not say; the rest is empty then
}

// Follow asks what the engine serves: at once, every 10 s, at every wake, and every
// second while it has never said. told takes each answer. It returns nil when ctx ends.
func (e *Engine) Follow(ctx context.Context, wake <-chan struct{}, log *slog.Logger, told func(Served)) error {
	wait := modelsAgain
	for {
		s := e.ask(ctx, log)
		if told(s); s.Err == nil {
			wait = modelsEvery // also while an engine that has said it hangs
		}
		select {
		case <-time.After(wait):
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (e *Engine) ask(ctx context.Context, log *slog.Logger) (s Served) {
	call, cancel := context.WithTimeout(ctx, askWithin)
	list, err := e.Models(call)
	cancel()
	if err == nil && len(list) == 0 {
		err = errNoModels
	}
	if err != nil {
		log.Debug("engine did not say its models", "err", err)
		return Served{Err: err}
	}
	for _, m := range list {
		s.Models = append(s.Models, m.ID)
		s.Longest = max(s.Longest, m.MaxModelLen)
	}
	slices.Sort(s.Models)
	s.Models = slices.Compact(s.Models)
	// Once in the engine's life, before the first delivery: does it report usage per
	// chunk? After that it returns at once.
	call, cancel = context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := e.Probe(call, list[0].ID); err != nil {
		log.Debug("engine did not say whether it reports usage", "err", err)
	}
	return s
}
