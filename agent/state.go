package agent

import (
	"time"

	"penstock/agent/health"
	"penstock/agent/state"
	"penstock/fleet"
	"penstock/reason"
)

// DebugState shows the inputs and reasons of the last verdicts, as a state.State.
func (a *Agent) DebugState() any {
	now := time.Now()
	s := a.State(now)
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Decisions = c.verdicts.Last(state.Remembered)
	for _, r := range c.runs {
		if len(s.Runs) == state.ShownRuns {
			break
		}
		s.Runs = append(s.Runs, r.shown(now))
	}
	return s
}

// State is without runs and decisions.
func (a *Agent) State(now time.Time) state.State {
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	s := state.State{
		Node: a.cfg.Node, Pool: a.cfg.Pool, GRPC: a.cfg.GRPC, Models: c.models, Ready: c.health.Serving(), Why: c.healthNow().Why(now),
		Taking: c.health.Taking(), Draining: c.draining, Running: len(c.runs), Sample: c.last, View: c.view(now),
		Room: c.room.Held(), Store: a.records.Failure(),
	}
	s.Condition, s.Gate = s.View.Condition.String(), s.View.Gate.String()
	if health.Usable(s.View.Condition) {
		s.Shut = state.Shut(&s.View, &a.cfg.Scheduler)
	}
	s.Startable = int(a.cfg.Scheduler.KVStart * float64(s.View.KVTokens))
	if c.bad != nil {
		s.Problem = c.bad.Error()
	}
	return s
}

// Attempt is the one of id that runs here; false: none does.
func (a *Agent) Attempt(now time.Time, id string) (state.Run, bool) {
	a.core.mu.Lock()
	defer a.core.mu.Unlock()
	r := a.core.runs[id]
	if r == nil {
		return state.Run{}, false
	}
	return r.shown(now), true
}

// shown is called with core's mutex.
func (r *run) shown(now time.Time) state.Run {
	s := state.Run{
		ID: r.Message.ID, Attempt: r.Name, Age: now.Sub(r.Began).Seconds(), Silent: r.Silent(now).Seconds(), Renewed: -1, Relayed: r.Relayed(),
	}
	if !r.renewed.IsZero() {
		s.Renewed, s.Tries = now.Sub(r.renewed).Seconds(), r.Tries // written before the claim was noted
	}
	return s
}

// Row is the engine as gateways and other agents see it. While nothing may start,
// for whatever reason, no tokens are free.
func (a *Agent) Row(now time.Time) fleet.Row {
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view(now)
	if v.Gate != reason.OK {
		v.Freeness = 0
	}
	return fleet.Row{
		Engine: fleet.ID(a.cfg.Node), Node: a.cfg.Node, Models: fleet.Models(c.models...), Pool: a.cfg.Pool, State: v.Condition,
		Running: v.Running, Waiting: v.Waiting, KV: v.KV, Step: v.StepTime, Freeness: v.Freeness,
		DrainRate: v.DrainRate, FirstToken: v.FirstToken, Start: v.Start, Relief: v.Relief, At: now,
	}
}
