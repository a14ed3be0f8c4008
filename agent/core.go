package agent

import (
	"slices"
	"sync"
	"time"

	"penstock/abort"
	"penstock/agent/attempt"
	"penstock/agent/health"
	"penstock/agent/state"
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
	room     room
	lanes    laneCounts
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

func newCore(sched *scheduler.State, cfg *Config, m *state.Counters) *core {
	return &core{
		metrics: m,
		sched:   sched,
		tiers:   cfg.Scheduler.Tiers,
		lanes:   newLaneCounts(),
		health:  health.NewPulse(cfg.LeaveAfter),
		room:    newRoom(cfg.Room, cfg.RoomPerLane),
		runs:    make(map[string]*run),
		idle:    make(chan struct{}),
	}
}

// decide answers a delivered head at once, or takes it into the room: then the
// answer comes through the head it returns. Decide and Reserve are one step.
func (c *core) decide(now time.Time, m *queue.Message, req *scheduler.Request) (answer, *head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	req.Tier = scheduler.Rank(c.tiers, m.Lane.Tier)
	v := c.sched.Decide(now, req)
	if bar, barred := c.barred(); v.Action == scheduler.Start && barred {
		bar.Action = scheduler.Suspend
		v = bar
	}
	if (v.Action == scheduler.Start || v.Action == scheduler.Hold) && c.lanes.full(m.Lane, c.room.of(m.Lane)) {
		v = scheduler.Verdict{Action: scheduler.Suspend, Reason: reason.LaneLimit, After: lanePause}
	}
	if v.Action == scheduler.Start && len(c.room.heads) == 0 {
		c.lanes.add(m.Lane, 1)
		return c.note(now, m.ID, req, answer{v, c.sched.Reserve(now, req)}), nil
	}
	if v.Action != scheduler.Start && v.Action != scheduler.Hold {
		return c.note(now, m.ID, req, answer{Verdict: v}), nil
	}
	// Capacity comes free soon, or it is free and others wait for it: Pick says who
	// is first.
	fits := c.room.free(m.Lane)
	full := answer{Verdict: scheduler.Verdict{Action: scheduler.Suspend, Reason: reason.RoomFull, After: v.After}}
	if v.Action == scheduler.Hold && !fits {
		return c.note(now, m.ID, req, full), nil
	}
	h := &head{id: m.ID, lane: m.Lane, hold: v, answer: make(chan answer, 1)}
	c.room.add(h, req)
	refused := c.fill(now)
	i := c.room.find(h)
	if i >= 0 && v.Action == scheduler.Start {
		h.hold = refused
	}
	if i >= 0 && fits && c.room.full() {
		fits = false
		i = c.sched.Last(now, c.room.reqs)
		full.After = c.room.heads[i].hold.After
	}
	if i >= 0 && !fits {
		c.leave(now, i, full)
	}
	if c.room.find(h) >= 0 {
		c.note(now, m.ID, req, answer{Verdict: h.hold})
	}
	return answer{}, h
}

// fill starts heads from the room while Pick finds one that may, and returns what
// stops the next. Everything that can free capacity calls it.
func (c *core) fill(now time.Time) scheduler.Verdict {
	if bar, barred := c.barred(); barred {
		bar.Action = scheduler.Hold
		return bar
	}
	for len(c.room.heads) > 0 {
		i, v := c.sched.Pick(now, c.room.reqs)
		if i < 0 {
			return v
		}
		a := answer{Verdict: v}
		if v.Action == scheduler.Start {
			a.slot = c.sched.Reserve(now, &c.room.reqs[i])
			c.lanes.add(c.room.heads[i].lane, 1)
		}
		c.leave(now, i, a)
	}
	return scheduler.Verdict{}
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

// leave answers head i of the room.
func (c *core) leave(now time.Time, i int, a answer) {
	c.note(now, c.room.heads[i].id, &c.room.reqs[i], a)
	c.room.leave(i, a)
}

// expire answers a head that waited long enough, unless it just got its answer.
func (c *core) expire(now time.Time, h *head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.room.find(h); i >= 0 {
		c.leave(now, i, answer{Verdict: scheduler.Verdict{Action: scheduler.Suspend, Reason: h.hold.Reason, After: h.hold.After}})
	}
}

// drop takes an aborted request's head out of the room.
func (c *core) drop(now time.Time, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, h := range c.room.heads {
		if h.id == id {
			c.leave(now, i, answer{Verdict: scheduler.Verdict{Action: scheduler.Drop, Reason: reason.Aborted}})
			return
		}
	}
}

// note counts and remembers what a head was told, and returns it.
func (c *core) note(now time.Time, id string, req *scheduler.Request, a answer) answer {
	c.metrics.Decided(a.Verdict)
	c.verdicts.Add(state.Decision{At: now, ID: id, Action: a.Action.String(), Reason: a.Reason.String(), After: a.After, Request: *req})
	return a
}

// observe takes a good sample. changed: somebody must hear of it. back: the engine
// is usable again.
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
	c.fill(now)
	return changed, !health.Usable(was) && health.Usable(c.health.Condition())
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
	c.lanes.add(r.Message.Lane, -1)
	c.fill(now)
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
		c.fill(now)
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

// drain is pause for good.
func (c *core) drain(now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	return c.pause(now)
}

// pause suspends every held head, lets no other start and returns how many run.
// idle closes when the last of them has ended. The caller has the mutex.
func (c *core) pause(now time.Time) int {
	c.draining = true
	c.sched.SetDraining(true)
	c.health.Look(now, reason.Draining)
	for len(c.room.heads) > 0 {
		c.leave(now, 0, answer{Verdict: scheduler.Verdict{Action: scheduler.Suspend, Reason: reason.Draining, After: c.room.heads[0].hold.After}})
	}
	c.settleDrain()
	return len(c.runs)
}

func (c *core) settleDrain() {
	if c.draining && len(c.runs) == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
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
