package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"penstock/agent/health"
	"penstock/agent/state"
	"penstock/fleet"
	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
	"penstock/registry"
)

const (
	// watchGap is between two updates of a WatchState stream at least, watchBeat at
	// most: silence for longer says that the agent is away.
	watchGap, watchBeat = 50 * time.Millisecond, time.Second
	// goneAfter is the age of an engine's last word from which its agent counts as
	// gone, as in the directory.
	goneAfter = 10 * time.Second
	gone      = "gone" // the condition of such an engine
	// storeWithin bounds a read of the store.
	storeWithin = time.Second
)

// GetState answers with the engines of this process.
func (s service) GetState(_ context.Context, r *penstockv1.GetStateRequest) (*penstockv1.GetStateResponse, error) {
	engines, err := s.engines(time.Now(), r.GetNode())
	return &penstockv1.GetStateResponse{Engines: engines}, err
}

// WatchState looks every watchGap and sends what changed. What a slow reader has not
// taken yet is not more than grpc's window, 64 KiB; then nothing is read for it.
func (s service) WatchState(r *penstockv1.WatchStateRequest, stream penstockv1.AgentService_WatchStateServer) error {
	var said []*penstockv1.EngineState
	var at time.Time
	return s.watch(stream.Context(), watchGap, func(now time.Time) error {
		engines, err := s.engines(now, r.GetNode())
		if err != nil {
			return err
		}
		if slices.EqualFunc(engines, said, same) && now.Sub(at) < watchBeat {
			return nil
		}
		said, at = engines, now
		return stream.Send(&penstockv1.WatchStateResponse{Engines: engines})
	})
}

// same compares two states by all but the passing of time. It leaves both as they were.
func same(a, b *penstockv1.EngineState) bool {
	age, why := b.SampleAgeSeconds, b.Why
	b.SampleAgeSeconds = a.SampleAgeSeconds
	if a.Condition != reason.OK.String() && a.Condition == b.Condition { // then why counts the seconds
		b.Why = a.Why
	}
	equal := proto.Equal(a, b)
	b.SampleAgeSeconds, b.Why = age, why
	return equal
}

// watch calls f at once and then every gap until the caller, f or Serve ends.
func (s *Server) watch(ctx context.Context, gap time.Duration, f func(now time.Time) error) error {
	if s.watchers.Add(1) > maxWatchers {
		s.watchers.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "%d streams are open already", maxWatchers)
	}
	defer s.watchers.Add(-1)
	tick := time.NewTicker(gap)
	defer tick.Stop()
	for {
		if err := f(time.Now()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return status.Error(codes.Unavailable, "shutting down")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// engines are those of this process; node "" is all of them.
func (s *Server) engines(now time.Time, node string) ([]*penstockv1.EngineState, error) {
	agents := s.deps.Agents
	if node != "" {
		a, err := s.named(now, node)
		if err != nil {
			return nil, err
		}
		agents = []Agent{a}
	}
	all := make([]*penstockv1.EngineState, len(agents))
	for i, a := range agents {
		all[i] = s.own(a, now)
	}
	return all, nil
}

// Cluster joins three sources, the later over the earlier: the engine directory, the
// rows of peers, this process.
func (s service) Cluster(ctx context.Context, _ *penstockv1.ClusterRequest) (*penstockv1.ClusterResponse, error) {
	engines, problem := s.cluster(ctx)
	answer := &penstockv1.ClusterResponse{Engines: engines}
	if s.keys != nil {
		answer.Warnings = s.keys.ending(time.Now())
	}
	if problem != nil {
		answer.Problem = problem.Error()
	}
	if s.deps.Policy != nil {
		p := s.deps.Policy()
		answer.Policy = &penstockv1.Policy{Source: p.Source, Hash: p.Hash, Newest: p.Newest, AgeSeconds: p.Age, Problem: p.Problem}
	}
	if s.deps.Gateways != nil {
		answer.Gateways = gateways(time.Now(), s.deps.Gateways())
	}
	return answer, nil
}

// gateways are those heard of lately, by node.
func gateways(now time.Time, rows []fleet.Row) (all []*penstockv1.GatewayState) {
	for i := range rows {
		if age := now.Sub(rows[i].At); age <= goneAfter {
			all = append(all, &penstockv1.GatewayState{Node: rows[i].Node, Policy: fleet.PolicyText(rows[i].Policy), AgeSeconds: max(age.Seconds(), 0)})
		}
	}
	slices.SortFunc(all, func(a, b *penstockv1.GatewayState) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

func (s *Server) cluster(ctx context.Context) ([]*penstockv1.EngineState, error) {
	call, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	listed, problem := s.deps.Engines(call)
	now := time.Now()                                              // after the call, which may take as long as a row counts
	known := make(map[uint64]*penstockv1.EngineState, len(listed)) // by the identity that rows have
	for i := range listed {
		known[fleet.ID(listed[i].Node)] = listedState(now, &listed[i])
	}
	rows := s.deps.Peers()
	for i := range rows {
		row := &rows[i]
		if known[row.Engine] == nil { // then its models are not known by name
			known[row.Engine] = &penstockv1.EngineState{Node: row.Node, Pool: row.Pool, AgeSeconds: math.Inf(1)}
		}
		fromRow(known[row.Engine], now, row)
	}
	for _, a := range s.deps.Agents {
		own := s.own(a, now)
		known[fleet.ID(own.Node)] = own
	}
	return slices.SortedFunc(maps.Values(known), func(a, b *penstockv1.EngineState) int { return cmp.Compare(a.Node, b.Node) }), problem
}

// listedState is what the directory says, which every agent renews every RenewEvery.
func listedState(now time.Time, e *registry.Engine) *penstockv1.EngineState {
	s := &penstockv1.EngineState{Node: e.Node, Grpc: e.GRPC, Models: e.Models, Pool: e.Pool}
	hear(s, now, e.Seen, e.State, e.Why(now))
	return s
}

// fromRow takes a peer's row, if it counts or is newer than what is known.
func fromRow(s *penstockv1.EngineState, now time.Time, row *fleet.Row) {
	if age := now.Sub(row.At); age > fleet.StaleAfter && age.Seconds() >= s.AgeSeconds {
		return
	}
	s.KvUsage, s.RunningRequests, s.WaitingRequests = row.KV, count(row.Running), count(row.Waiting)
	s.StepSeconds, s.FirstTokenSeconds = row.Step.Seconds(), row.FirstToken.Seconds()
	s.FreeTokens, s.DrainTokensPerSecond, s.StartSeconds = count(row.Freeness), row.DrainRate, row.Start.Seconds()
	s.Policy = fleet.PolicyText(row.Policy)
	why := "" // a row has none; the directory's holds for the same condition
	if s.Condition == row.State.String() {
		why = s.Why
	}
	hear(s, now, row.At, row.State, why)
}

// hear sets what an engine's agent last said of its condition, and why it is so where
// that is known.
func hear(s *penstockv1.EngineState, now, at time.Time, condition reason.Reason, why string) {
	s.AgeSeconds = max(now.Sub(at).Seconds(), 0)
	s.Condition, s.Why = condition.String(), ""
	switch {
	case now.Sub(at) > goneAfter:
		s.Condition, s.FreeTokens = gone, 0
		s.Why = fmt.Sprintf("%s: not heard of for %d s", gone, int(s.AgeSeconds))
	case condition != reason.OK:
		s.Why = cmp.Or(why, condition.String())
	}
	s.Gate, s.Ready = s.Condition, health.Usable(condition) && s.Condition != gone
}

// own is an engine of this process.
func (s *Server) own(a Agent, now time.Time) *penstockv1.EngineState {
	of := a.State(now)
	out := engineState(&of)
	if s.deps.Policy != nil {
		out.Policy = fleet.PolicyText(fleet.Policy(s.deps.Policy().Hash))
	}
	return out
}

// engineState is the engine as its own agent sees it.
func engineState(s *state.State) *penstockv1.EngineState {
	v := &s.View
	out := &penstockv1.EngineState{
		Node: s.Node, Models: s.Models, Pool: s.Pool, Grpc: s.GRPC, Local: true,
		Condition: s.Condition, Gate: s.Gate, Why: cmp.Or(s.Shut, s.Why), Ready: s.Ready && len(s.Models) > 0,
		SampleAgeSeconds: v.SampleAge.Seconds(), KvUsage: v.KV, RunningRequests: count(v.Running), WaitingRequests: count(v.Waiting),
		StepSeconds: v.StepTime.Seconds(), FirstTokenSeconds: v.FirstToken.Seconds(),
		StartSeconds: v.Start.Seconds(), DrainTokensPerSecond: v.DrainRate, PrefillTokensPerSecond: v.Prefill, KvTokens: count(v.KVTokens),
		InflightRequests: count(s.Running), LedgerRequests: count(v.Requests), LedgerTokens: count(v.Tokens),
		PendingTokens: count(v.Pending), PendingSequences: count(v.PendingSeq), UnseenTokens: count(v.Credit), HeldRequests: count(len(s.Room)),
	}
	if v.Gate == reason.OK {
		out.FreeTokens = count(v.Freeness)
	}
	return out
}

// count is n as a message's count.
func count(n int) int32 { return int32(max(min(n, math.MaxInt32), math.MinInt32)) }
