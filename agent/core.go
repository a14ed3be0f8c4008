package agent

import (
	"slices"
	"sync"
	"time"

	"penstock/abort"
	"penstock/agent/attempt"
	"penstock/agent/health"
	"penstock/agent/room"
	"penstock/agent/state"
	"penstock/lane"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/scheduler"
	"penstock/scraper/nvml"
	"penstock/vllm"
)

// distrustPause is how long a head waits after the engine failed a start: about
// two polls, by when a good sample has shown that it lives or none has come.
const distrustPause = 100 * time.Millisecond

// gpuPause is how long a head waits at an engine whose GPU is lost or at fault: it
// does not come back by itself.
const gpuPause = time.Second

// core is the shell around the decision: one mutex, the scheduler's state and what
// must change together with it. Nothing under the mutex does IO or waits.
type core struct {
	metrics *state.Counters
	poll    func() time.Duration // how often samples come at present; nil: as configured

	mu       sync.Mutex // guards all below
	sched    *scheduler.State
	tiers    []scheduler.Tier // as sched has them
	room     *room.Room
	health   health.Pulse
	runs     map[string]*run // by request id, between begin and end
	last     scheduler.Sample
	bad      error // why the last scrape was bad; nil = it was good
	dead     bool  // the engine's process is gone, says its HTTP side
	gpu      nvml.Sample
	models   []string  // sorted; replaced, never changed
	unnamed  error     // why the engine did not say its models when last asked; nil = it did
	longest  int       // max_model_len; 0 = not known
	listen   []func()  // told after health changed
	failed   time.Time // when the engine failed a start; zero once a later sample was good
	verdicts state.Ring
	aborts   abort.Effect
	draining bool
	ending   bool          // draining for good
	idle     chan struct{} // closed once draining and nothing runs; not replaced once ending
}

func newCore(sched *scheduler.State, cfg *Config, limit func(lane.Key) int, m *state.Counters) *core {
	c := &core{
		metrics: m,
		sched:   sched,
		tiers:   cfg.Scheduler.Tiers,
		health:  health.NewPulse(cfg.LeaveAfter),
		runs:    make(map[string]*run),
		idle:    make(chan struct{}),
	}
	c.room = room.New(room.Config{Size: cfg.Room, PerLane: cfg.RoomPerLane, Limit: limit, Barred: c.barred, Told: c.note}, sched)
	return c
}

// decide answers a delivered head or takes it into the room. Decide and Reserve are one
// step.
func (c *core) decide(now time.Time, m *queue.Message, req *scheduler.Request) *room.Head {
	c.mu.Lock()
	defer c.mu.Unlock()
	req.Tier = scheduler.Rank(c.tiers, m.Lane.Tier)
	return c.room.Decide(now, m.ID, m.Lane, req)
}

// expire answers a head that waited long enough, unless it just got its answer.
func (c *core) expire(now time.Time, h *room.Head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room.Expire(now, h)
}

// drop takes an aborted request's head out of the room.
func (c *core) drop(now time.Time, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room.Drop(now, id)
}

// park lets a head wait for its lane: see room.Park.
func (c *core) park(k lane.Key) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.room.Park(k)
}

func (c *core) unpark(k lane.Key, ended chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room.Unpark(k, ended)
}

// note counts and remembers what a head was told. The room calls it.
func (c *core) note(now time.Time, id string, req *scheduler.Request, v scheduler.Verdict) {
	c.metrics.Decided(v)
	c.verdicts.Add(state.Decision{At: now, ID: id, Action: v.Action.String(), Reason: v.Reason.String(), After: v.After, Request: *req})
}

// barred is why nothing may start although the scheduler, which knows pages only,
// sees no reason.
func (c *core) barred() (scheduler.Verdict, bool) {
	switch {
	case c.gpu.Reason != reason.None && c.gpu.Reason != reason.OK:
		return scheduler.Verdict{Reason: c.gpu.Reason, After: gpuPause}, true
	case c.dead || !c.failed.IsZero():
		return scheduler.Verdict{Reason: reason.EngineDown, After: distrustPause}, true
	}
	return scheduler.Verdict{}, false
}

// observe takes a good sample. changed: somebody must hear of it, or the engine is not
// usable, which has consequences with time. back: it is usable again.
func (c *core) observe(now time.Time, s scheduler.Sample, peers []scheduler.Peer) (changed, back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics.Freed.Add(float64(c.aborts.Observe(s.At, c.last.Running+c.last.Waiting, s.Running+s.Waiting, c.atEngine())))
	c.last, c.bad = s, nil
	if s.At.After(c.failed) {
		c.failed = time.Time{}
	}
	if c.poll != nil {
		c.sched.SetPoll(c.poll())
	}
	c.sched.SetPeers(peers)
	c.sched.Observe(now, s)
	was := c.health.Condition()
	changed = c.health.Look(now, c.condition(now))
	changed = c.health.Sample() || changed
	c.room.Fill(now)
	usable := health.Usable(c.health.Condition())
	return changed || !usable, usable && !health.Usable(was)
}

// observeGPU takes what the GPU helper says and reports whether the condition changed.
func (c *core) observeGPU(now time.Time, s nvml.Sample) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gpu = s
	return c.condition(now) != c.health.Condition()
}

// look takes the passing of time and reports whether the condition changed. The
// peers matter most while no sample comes: heads go to them then.
func (c *core) look(now time.Time, peers []scheduler.Peer) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sched.SetPeers(peers)
	changed = c.health.Look(now, c.condition(now))
	if seen := c.health.Condition(); (seen == reason.Blind || seen == reason.Stuck) && c.health.Unusable(now) >= vllm.StallLimit {
		for _, r := range c.runs {
			if !r.Message.Stream { // a stream has its own stall limit, and may well go on
				r.Cancel(attempt.ErrIdle)
			}
		}
	}
	return changed
}

// runsHere reports whether an attempt of id is between begin and end.
func (c *core) runsHere(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[id] != nil
}

// begin registers a run, whose slot is taken already, unless its id has one or a
// drain came between.
func (c *core) begin(r *run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining || c.runs[r.Message.ID] != nil {
		return false
	}
	c.runs[r.Message.ID] = r
	return true
}

// owned marks a run as claimed, and so renewed from now on.
func (c *core) owned(now time.Time, r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.renewed = now
}

// end forgets a run. The last one of a drain ends the drain.
func (c *core) end(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, r.Message.ID)
	c.settleDrain()
}

// release gives a run's place in the ledger back, once: when the engine is done
// with it, which is before its record is. why is how the attempt ended; cut: its
// connection was closed on purpose.
func (c *core) release(now time.Time, r *run, why reason.Reason, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.slot == 0 {
		return
	}
	if cut {
		c.aborts.Closed(now)
	}
	if why == reason.Finished {
		c.sched.Finish(now, r.slot)
	} else {
		c.sched.Release(now, r.slot)
	}
	r.slot = 0
	c.room.Ended(now, r.Message.Lane)
}

// atEngine is how many runs have not been released. The caller has the mutex.
func (c *core) atEngine() (n int) {
	for _, r := range c.runs {
		if r.slot != 0 {
			n++
		}
	}
	return n
}

// progress takes a run's token totals. Once per chunk: keep it short.
func (c *core) progress(now time.Time, r *run, prompt, output int) {
	c.mu.Lock()
	c.sched.Progress(now, r.slot, prompt, output)
	if !r.tokens { // its prefill is over: the next one may begin
		r.tokens = true
		c.room.Fill(now)
	}
	c.mu.Unlock()
}

// distrust stops further starts until a sample taken after now is good: a dead
// engine must not cost every waiting request its tries.
func (c *core) distrust(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = now
}

// each calls f for every run, with the mutex held: f must not block.
func (c *core) each(f func(*run)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.runs {
		f(r)
	}
}

// owns lists the claimed runs for renewal.
func (c *core) owns() []registry.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	refs := make([]registry.Ref, 0, len(c.runs))
	for id, r := range c.runs {
		if !r.renewed.IsZero() {
			refs = append(refs, registry.Ref{ID: id, Attempt: r.Name, Reply: r.Message.Reply, Streaming: r.Relayed()})
		}
	}
	return refs
}

// renewed takes the store's answer, asked at now: refs are owned, lost are not.
func (c *core) renewed(now time.Time, refs, lost []registry.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range refs {
		r := c.runs[ref.ID]
		if r == nil || r.Name != ref.Attempt {
			continue
		}
		r.renewed = now
		if slices.ContainsFunc(lost, func(l registry.Ref) bool { return l.ID == ref.ID && l.Attempt == ref.Attempt }) {
			r.Cancel(attempt.ErrLost)
		}
	}
}
