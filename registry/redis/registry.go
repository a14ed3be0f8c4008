// Package redis keeps the records of requests in a Redis that a fleet of gateways and
// agents shares: the protocol of package registry, the door, and the directories of
// lanes and engines. DESIGN.md says what is kept where.
//
// Every call is one Lua script and one round trip, judged by Redis's own clock, and
// may be repeated. The keys of a script are made from the record it finds, so this
// needs one primary, with or without failover; it does not work on a sharded cluster.
// All time.Time values are this host's clock: they are moved by Offset on the way.
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/errgroup"

	"penstock/lane"
	"penstock/quota"
	"penstock/redisconn"
	"penstock/registry"
	"penstock/registry/redis/script"
)

const (
	sweepEvery = time.Second
	// sweepMore is until the next sweep where sweptAtOnce lanes were idle: 2,000 lanes a
	// second and process.
	sweepMore, sweptAtOnce = 50 * time.Millisecond, 100
	// clockEvery is how often Redis TIME is read; the best of the last clockSamples counts.
	clockEvery   = 2 * time.Second
	clockSamples = 15
)

// Registry implements registry.Records, registry.Directory and registry.Lanes.
type Registry struct {
	cfg     Config
	log     *slog.Logger
	link    redisconn.Link
	client  *redisconn.Client
	scripts map[string]*goredis.Script
	breaker *gobreaker.CircuitBreaker[any]
	metrics *metrics

	offset atomic.Int64 // nanoseconds
	timed  atomic.Bool  // offset was read at least once
	down   atomic.Bool  // logged as away
	why    atomic.Pointer[error]

	mu       sync.Mutex                            // guards what follows
	watchers map[chan string]struct{}              // each has room for some announcements; "" = read anew
	waiters  map[string]map[chan struct{}]struct{} // Opens by the lane they wait for
	known    map[string]struct{}                   // lanes seen confirmed; at most knownMost
	said     map[lane.Key]string                   // lanes this process has confirmed, for that node
	running  map[[2]string]mine                    // by id and attempt
	cleared  time.Time                             // running, of old entries
	backlog  []registry.Backlog                    // as last read
	totals   quota.Totals                          // of limits, by this process's calls
}

var (
	_ registry.Records   = (*Registry)(nil)
	_ registry.Directory = (*Registry)(nil)
	_ registry.Lanes     = (*Registry)(nil)
)

// New makes a registry and connects to nothing.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Registry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Rank == nil {
		cfg.Rank = func(string) int { return 0 }
	}
	if cfg.Bounds == nil {
		cfg.Bounds = func(lane.Key) registry.Bounds { return registry.Bounds{} }
	}
	if cfg.Pace == nil {
		cfg.Pace = func(lane.Key) float64 { return 0 }
	}
	if cfg.Live == nil {
		cfg.Live = func(string) string { return "" }
	}
	if cfg.Cancel == nil {
		cfg.Cancel = func(string, string, string) {}
	}
	r := &Registry{
		cfg: cfg, log: log, scripts: map[string]*goredis.Script{}, watchers: map[chan string]struct{}{},
		waiters: map[string]map[chan struct{}]struct{}{}, known: map[string]struct{}{}, said: map[lane.Key]string{}, running: map[[2]string]mine{},
	}
	options, err := r.cfg.options()
	if err != nil {
		return nil, err
	}
	sources, err := script.Sources(r.cfg.Mailbox, r.cfg.TotalBytes)
	if err != nil {
		return nil, err
	}
	for name, text := range sources {
		r.scripts[name] = goredis.NewScript(text)
	}
	if r.metrics, err = newMetrics(reg, maps.Keys(r.scripts), func() float64 { return r.Offset().Seconds() }); err != nil {
		return nil, fmt.Errorf("registry/redis: %w", err)
	}
	for _, c := range registry.QuotaMetrics(r.Quota) {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registry/redis: %w", err)
		}
	}
	r.client = r.link.Client(options)
	r.breaker = r.newBreaker()
	return r, nil
}

// Run listens for cancels, lanes and confirmations, reads Redis's clock and sweeps,
// until ctx ends; then it closes the connections. It does not fail: while Redis is
// away it goes on trying. Calls are possible from New until Run returns.
func (r *Registry) Run(ctx context.Context) error {
	var all errgroup.Group
	for _, duty := range []func(context.Context){r.listen, r.clock, r.sweep} {
		all.Go(func() error {
			duty(ctx)
			return nil
		})
	}
	return errors.Join(all.Wait(), r.client.Close())
}

// Offset is Redis's clock minus this host's, from the sample with the shortest round
// trip of the last half minute; wrong by at most half of that. 0 before the first.
func (r *Registry) Offset() time.Duration { return time.Duration(r.offset.Load()) }

// Ready says whether calls are answered, and if not why.
func (r *Registry) Ready() (bool, string) {
	switch {
	case r.breaker.State() != gobreaker.StateClosed:
		return false, "redis away: " + r.trouble()
	case !r.timed.Load():
		return false, "redis not reached yet: " + r.trouble()
	}
	return true, ""
}

// clock keeps Offset. Its reads are also what tries a Redis that was away again.
func (r *Registry) clock(ctx context.Context) {
	type sample struct{ trip, offset time.Duration }
	var samples [clockSamples]sample
	for n := 0; ; {
		sent := time.Now()
		answer, err := r.run(ctx, "clock", 0)
		row, err := script.Read(answer, err, 2)
		pause := probeEvery
		if err == nil {
			trip := time.Since(sent)
			at := time.Unix(int64(row.Int(0)), int64(row.Int(1))*1000)
			samples[n%clockSamples] = sample{trip, at.Sub(sent.Add(trip / 2))}
			n++
			best := samples[0]
			for _, s := range samples[:min(n, clockSamples)] {
				if s.trip < best.trip {
					best = s
				}
			}
			r.offset.Store(int64(best.offset))
			if !r.timed.Swap(true) {
				r.log.Info("redis reached", "clock_offset", best.offset)
			}
			if n >= 3 {
				pause = clockEvery
			}
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (r *Registry) sweep(ctx context.Context) {
	for pause := sweepEvery; sleep(ctx, pause); {
		idle, err := r.run(ctx, "sweep", 0)
		if err != nil && !errors.Is(err, registry.ErrAway) && ctx.Err() == nil {
			r.log.Error("sweep failed", "error", err)
		}
		pause = sweepEvery
		if idle == int64(sweptAtOnce) {
			pause = sweepMore
		}
	}
}

// sleep is false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stamp is t on Redis's clock in milliseconds.
func (r *Registry) stamp(t time.Time) int64 { return t.Add(r.Offset()).UnixMilli() }
