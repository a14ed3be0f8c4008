package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/redisconn"
)

var (
	// ErrAway is returned by Append for an event over a bound of what may wait for
	// Redis: Config.Buffer, BufferFor or BufferAll. Its attempt cannot go on.
	ErrAway = errors.New("response/redis: Redis away for longer than events may wait")
	// ErrStopped is returned once Run's context has ended.
	ErrStopped = errors.New("response/redis: writer stopped")
)

// Writer is the agent's side: it appends events to the mailboxes of all gateways.
type Writer struct {
	pipes []*pipe
	seed  maphash.Seed
	cfg   Config
	link  redisconn.Link
}

// NewWriter makes a writer; nothing is sent before Run.
func NewWriter(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Writer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &Writer{cfg: cfg, seed: maphash.MakeSeed()}
	all := &buffered{limit: int64(cfg.BufferAll)}
	m, err := newWriterMetrics(reg, func() float64 { return float64(all.bytes.Load()) })
	if err != nil {
		return nil, fmt.Errorf("response/redis: %w", err)
	}
	for range cfg.Connections {
		w.pipes = append(w.pipes, newPipe(&w.cfg, &w.link, log, m, all))
	}
	return w, nil
}

func (w *Writer) pipe(reply string) *pipe {
	return w.pipes[maphash.String(w.seed, reply)%uint64(len(w.pipes))]
}

// Append takes a copy of event for the mailbox at reply and returns at once; events
// of one reply reach Redis in the order of Append, each once or more often. It
// returns response.ErrGone when the mailbox's gateway is gone, ErrAway over a bound,
// ErrStopped after Run, response.ErrMalformed for bytes that are no event. Any
// goroutine may call it.
func (w *Writer) Append(reply string, event []byte) error {
	return w.pipe(reply).append(time.Now(), reply, event)
}

// Flush returns when Redis has accepted everything that was appended to reply before
// the call: nil, response.ErrGone or ErrStopped where it never will, or ctx's error.
// What the record store appends by itself (First and terminal events) comes after a
// Flush.
func (w *Writer) Flush(ctx context.Context, reply string) error {
	return w.pipe(reply).flush(ctx, reply)
}

// Ready reports whether Redis took the last events. Any goroutine may call it.
func (w *Writer) Ready() bool {
	for _, p := range w.pipes {
		if p.away.Load() {
			return false
		}
	}
	return true
}

// Run sends until ctx ends, then what is left for at most Config.Drain, and returns
// when no goroutine is left. It is called once, and ends after everything that
// appends.
func (w *Writer) Run(ctx context.Context) error {
	var pipes sync.WaitGroup
	for _, p := range w.pipes {
		pipes.Go(func() { p.run(ctx) })
	}
	pipes.Wait()
	return nil
}
