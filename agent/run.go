// Package agent is the node side of penstock: it takes deliveries from the lanes,
// asks the scheduler, and brings each to exactly one result. It translates and
// orders; what is computed, scheduler computes.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"penstock/abort"
	"penstock/agent/attempt"
	"penstock/agent/engine"
	"penstock/agent/health"
	"penstock/agent/record"
	"penstock/agent/state"
	"penstock/fleet"
	"penstock/lane"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/scheduler"
	"penstock/scraper"
	"penstock/scraper/nvml"
	"penstock/vllm"
)

const (
	// silence is how often the passing of time is looked at while no good sample makes
	// an event, and watchEvery while one does.
	silence, watchEvery = 100 * time.Millisecond, time.Second
	// beatEvery is the granularity of heartbeats.
	beatEvery = time.Second
	// backlogEvery is how often the lanes' backlog is read.
	backlogEvery = time.Second
	// unrenewedFor closes a run whose ownership nobody has confirmed for so long.
	unrenewedFor = 30 * time.Second
	// seenIDs and seenFor bound the ids known to be aborted: the longest start
	// deadline, at a thousand aborts per minute.
	seenIDs, seenFor = 10_000, 10 * time.Minute
)

// Consumer delivers from the lanes it accepts; nil accepts none.
type Consumer interface {
	Accept(func(lane.Key) bool)
	Run(context.Context, queue.Handler) error
}

// Deps is what an agent works with.
type Deps struct {
	Records   registry.Records
	Directory registry.Directory
	Consumer  Consumer
	// Append carries an event to the mailbox at reply. It keeps nothing of event.
	Append func(reply string, event []byte) error
	// Flush returns once everything appended to reply has arrived, so that the event
	// the record store appends comes after it; nil where Append is arrival.
	Flush func(ctx context.Context, reply string) error
	// Peers returns the rows of the other engines. It is called with every sample
	// and must not wait.
	Peers func() []fleet.Row
	// Backlog is what waits in the lanes; nil where there is one tier, which needs none.
	Backlog func(now time.Time) []registry.Backlog
	// LaneLimit is how many requests of a lane may run on this engine at once, 0 = as
	// many as it lets. It must not wait; nil: no lane has a limit.
	LaneLimit func(k lane.Key) int
	Metrics   prometheus.Registerer // with the label node
	Log       *slog.Logger
}

// Agent serves one engine.
type Agent struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *state.Counters
	core    *core
	records *record.Store
	engine  engine.Engine
	close   func()                      // ends the engine's idle connections
	scrape  func(context.Context) error // reads samples until its context ends

	gpus *nvml.Reader // nil: off

	running *abort.Running
	seen    *abort.Seen

	silent *time.Timer // kicks changed after silence; put off by every good sample; Run's

	// Of size 1: a kick that finds one waiting says nothing new.
	changed chan struct{} // the condition or the models changed
	ask     chan struct{} // the engine may serve other models now
	put     chan struct{} // the directory entry changed
	suspect chan struct{} // the engine failed a start

	told   health.Health // what listeners heard last; the watch goroutine's
	taking []string      // models whose lanes are subscribed; the watch goroutine's

	scraped, watched atomic.Int64 // unix nanoseconds of the loops' last rounds, for Progress
}

// New checks cfg, registers the metrics and starts nothing.
func New(cfg Config, deps Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Records == nil || deps.Directory == nil || deps.Consumer == nil || deps.Append == nil || deps.Peers == nil || deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("agent: a dependency is nil; Deps needs all of them")
	}
	client, err := vllm.New(cfg.Engine)
	if err != nil {
		return nil, err
	}
	cfg.Scheduler.Poll = min(cfg.Scraper.Interval, 250*time.Millisecond) // of fresh; at most what scheduler allows
	cfg.Scheduler.Ready = cfg.Room
	sched, err := scheduler.New(cfg.Scheduler, time.Now())
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, deps: deps, log: deps.Log.With("node", cfg.Node),
		engine: engine.New(client), close: client.Close,
		records: &record.Store{Records: deps.Records, Flush: deps.Flush, Timeout: cfg.StoreTimeout, Log: deps.Log.With("node", cfg.Node)},
		running: abort.NewRunning(), seen: abort.NewSeen(seenIDs, seenFor),
		changed: make(chan struct{}, 1), ask: make(chan struct{}, 1), put: make(chan struct{}, 1), suspect: make(chan struct{}, 1),
	}
	if a.metrics, err = state.NewCounters(deps.Metrics, a.State); err != nil {
		return nil, err
	}
	limit := deps.LaneLimit
	if limit == nil {
		limit = func(lane.Key) int { return 0 }
	}
	a.core = newCore(sched, &cfg, limit, a.metrics)
	s, err := scraper.New(cfg.Scraper, deps.Metrics, a.log, a.observe, a.bad)
	if err != nil {
		return nil, err
	}
	a.scrape, a.core.poll = s.Run, s.Interval
	if cfg.NVML.Path != nvml.Off {
		if a.gpus, err = nvml.New(cfg.NVML, a.log, deps.Metrics, a.observeGPU); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Run serves until ctx ends, drains and returns nil. It returns earlier, with the
// error, when the consumer fails.
func (a *Agent) Run(ctx context.Context) error {
	defer a.close()
	defer a.core.tell()                                              // whatever ended it, it is not ready any more
	outlives, stop := context.WithCancel(context.WithoutCancel(ctx)) // what runs is drained after ctx
	defer stop()
	a.silent = time.AfterFunc(silence, func() { kick(a.changed) })
	defer a.silent.Stop()
	g, work := errgroup.WithContext(outlives)
	g.Go(func() error { return a.scrape(work) })
	if a.gpus != nil {
		g.Go(func() error { return a.gpus.Run(work) })
	}
	g.Go(func() error { return a.engine.Follow(work, a.ask, a.log, a.serves) })
	g.Go(func() error { return every(work, checkEvery, a.suspect, a.check) })
	g.Go(func() error { return every(work, watchEvery, a.changed, a.watch) })
	g.Go(func() error { return every(work, registry.RenewEvery, a.put, a.announce) })
	g.Go(func() error { return every(work, registry.RenewEvery, nil, a.renew) })
	g.Go(func() error { return every(work, beatEvery, nil, a.beat) }) // apart from watch: a mailbox may be slow
	if a.deps.Backlog != nil {
		g.Go(func() error { return every(work, backlogEvery, nil, a.readBacklog) })
	}
	g.Go(func() error { return a.deps.Consumer.Run(work, a.handle) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			a.drain(work)
		case <-work.Done():
		}
		stop()
		return nil
	})
	err := g.Wait()
	a.core.pause(time.Now(), true)
	return err
}

// every calls f now, once per period and at every wake, until ctx ends.
func every(ctx context.Context, period time.Duration, wake <-chan struct{}, f func(ctx context.Context, now time.Time)) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		f(ctx, time.Now())
		select {
		case <-tick.C:
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Cancel stops a request because its client is gone or its outcome is made: the
// registry's push to the owner. A delivery of it that comes later is dropped.
// attempt "" means whichever runs. It reports whether the request runs here.
func (a *Agent) Cancel(id, attempt string) (runs bool) {
	now := time.Now()
	runs = a.core.runsHere(id)
	a.seen.Mark(now, id)
	if !a.running.Cancel(id, attempt) {
		a.core.drop(now, id)
	}
	return runs
}

// Condition is the engine's at now: OK, or why it cannot be judged or used.
func (a *Agent) Condition(now time.Time) reason.Reason {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	return a.core.condition(now)
}

// Progress is when the slower of the agent's two loops last came round, the one that
// reads the engine's page, whatever came of it, and the one that follows its
// condition. Where it stands still the process hangs.
func (a *Agent) Progress() time.Time {
	return time.Unix(0, min(a.scraped.Load(), a.watched.Load()))
}

// observe is the scraper's good sample.
func (a *Agent) observe(s scheduler.Sample) {
	now := time.Now()
	defer a.scraped.Store(now.UnixNano()) // only once the core has taken it
	changed, back := a.core.observe(now, s, a.peers(now))
	a.silent.Reset(silence)
	if changed {
		kick(a.changed)
	}
	if s.Restarted && a.gpus != nil {
		a.gpus.EngineRestarted()
	}
	if back || s.Restarted {
		kick(a.ask)
	}
}

// observeGPU is the GPU helper's sample.
func (a *Agent) observeGPU(s nvml.Sample) {
	if a.core.observeGPU(time.Now(), s) {
		kick(a.changed)
	}
}

// bad is the scraper's sample that could not be read.
func (a *Agent) bad(at time.Time, err error) {
	defer a.scraped.Store(at.UnixNano())
	a.core.mu.Lock()
	a.core.bad = err
	failed := !a.core.failed.IsZero()
	a.core.mu.Unlock()
	if failed {
		kick(a.changed)
	}
}

// watch follows the condition: subscribes lanes, tells health listeners and the
// directory, and ends plain requests of an engine nobody sees.
func (a *Agent) watch(_ context.Context, now time.Time) {
	defer a.watched.Store(now.UnixNano())
	a.silent.Reset(silence)
	if a.core.look(now, a.peers(now)) {
		kick(a.put)
	}
	h, models, problem := a.core.wants()
	if !slices.Equal(models, a.taking) {
		a.taking = models
		if len(models) == 0 {
			a.deps.Consumer.Accept(nil)
		} else {
			a.deps.Consumer.Accept(a.accepts(models))
		}
		a.log.Info("lanes", "models", models, "pool", a.cfg.Pool)
	}
	if !h.Equal(a.told) {
		a.log.Info("health", "ready", h.Ready, "reason", h.Reason.String(), "was", a.told.Reason.String(), "scrape", problem)
		a.told = h
		kick(a.put)
		a.core.tell()
	}
}

// renew keeps the ownership of everything that runs, in one call, and closes what
// it has lost.
func (a *Agent) renew(ctx context.Context, now time.Time) {
	refs := a.core.owns()
	if len(refs) == 0 {
		return
	}
	if lost, err := a.records.Renew(ctx, a.cfg.Node, refs); err == nil {
		a.core.renewed(now, refs, lost)
	}
	a.core.each(func(r *run) {
		if !r.renewed.IsZero() && now.Sub(r.renewed) >= unrenewedFor {
			r.Cancel(attempt.ErrUnrenewed)
		}
	})
}

// beat tells the gateway of every claimed attempt that is silent that it lives.
func (a *Agent) beat(_ context.Context, now time.Time) {
	var claimed []*run
	a.core.each(func(r *run) {
		if !r.renewed.IsZero() {
			claimed = append(claimed, r)
		}
	})
	for _, r := range claimed { // without the mutex: a mailbox may be slow
		r.Beat(now)
	}
}

func (a *Agent) peers(now time.Time) []scheduler.Peer {
	return peers(a.deps.Peers(), a.cfg.Node, a.core.served(), now)
}

// peers is what the decision sees of the other engines: those that serve one of
// models.
func peers(rows []fleet.Row, self string, models []string, now time.Time) []scheduler.Peer {
	var out []scheduler.Peer
	me := fleet.ID(self)
	for i := range rows {
		row := &rows[i]
		if row.Engine == me || !slices.ContainsFunc(models, func(m string) bool { return row.Serves(m, now) }) {
			continue
		}
		out = append(out, scheduler.Peer{CanStart: row.State == reason.OK && row.Freeness > 0, Freeness: row.Freeness, At: row.At})
	}
	return out
}

// kick wakes the one goroutine that listens on c.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
