package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
	"penstock/registry"
)

// lanesTop is how many lanes are listed unless asked otherwise.
const lanesTop = 20

// Lanes lists what waits, lane by lane and by tier and model, and why by the engines
// that this agent knows.
func (s service) Lanes(ctx context.Context, r *penstockv1.LanesRequest) (*penstockv1.LanesResponse, error) {
	top := int(r.GetTop())
	if top <= 0 {
		top = lanesTop
	}
	engines, _ := s.cluster(ctx)
	answer := &penstockv1.LanesResponse{}
	call, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	longest, total, err := s.deps.Longest(call, top)
	if err != nil {
		answer.Problem = err.Error()
	}
	answer.Total = count(total)
	for i := range longest {
		answer.Lanes = append(answer.Lanes, s.oneLane(&longest[i], engines))
	}
	for _, b := range s.deps.Backlog(time.Now()) {
		answer.Classes = append(answer.Classes, oneClass(&b, engines, s.deps.Width))
	}
	slices.SortStableFunc(answer.Classes, func(a, b *penstockv1.Lane) int {
		return cmp.Or(cmp.Compare(b.BacklogRequests, a.BacklogRequests), cmp.Compare(b.OldestSeconds, a.OldestSeconds))
	})
	answer.Classes = answer.Classes[:min(top, len(answer.Classes))]
	return answer, nil
}

// oneLane says why what waits in a lane does not start: as many of it run as may. A free
// engine explains nothing where all that waits stands behind what runs: that is the lane's
// width. Else, where the lane has a pace, that holds it.
func (s service) oneLane(b *registry.LaneBacklog, engines []*penstockv1.EngineState) *penstockv1.Lane {
	l := &penstockv1.Lane{
		Tier: b.Lane.Tier, Type: b.Lane.Type, Model: b.Lane.Model, Pool: b.Lane.Pool, Tenant: b.Lane.Tenant,
		BacklogRequests: count(b.Requests), BacklogTokens: float64(b.Tokens), OldestSeconds: b.Oldest.Seconds(),
		RunningRequests: count(b.Running), Width: count(b.Width),
	}
	gates, n := gatesOf(engines, b.Lane.Model, b.Lane.Pool)
	most, pace := s.deps.Limits(b.Lane)
	free := gates[reason.OK.String()] > 0
	switch {
	case n > 0 && most > 0 && b.Running >= n*most:
		l.LimitedBy = reason.LaneLimit.String()
	case free && b.Held:
		l.LimitedBy = reason.LaneWidth.String()
	case free && pace > 0:
		l.LimitedBy = reason.Paced.String()
	default:
		l.LimitedBy = limitedBy(gates)
	}
	return l
}

// oneClass is a tier and model. width is how many requests one engine runs.
func oneClass(b *registry.Backlog, engines []*penstockv1.EngineState, width int) *penstockv1.Lane {
	gates, n := gatesOf(engines, b.Model, "")
	l := &penstockv1.Lane{
		Tier: b.Tier, Model: b.Model, BacklogRequests: count(b.Requests), BacklogTokens: float64(b.Tokens),
		OldestSeconds: b.Oldest.Seconds(), RunningRequests: count(b.Running), Width: count(n * width),
	}
	switch {
	case b.Requests == 0:
	case n > 0 && width > 0 && l.RunningRequests >= l.Width:
		l.LimitedBy = reason.LaneWidth.String()
	default:
		l.LimitedBy = limitedBy(gates)
	}
	return l
}

// gatesOf counts the gates of the n usable engines that may take work of a model and pool.
func gatesOf(engines []*penstockv1.EngineState, model, pool string) (gates map[string]int, n int) {
	gates = map[string]int{}
	for _, e := range engines {
		if e.Ready && slices.Contains(e.Models, model) && (pool == "" || pool == e.Pool) {
			gates[e.Gate]++
			n++
		}
	}
	return gates, n
}

// limitedBy is the commonest gate that is closed, the first by name of several; ok
// where all are open: it starts now.
func limitedBy(gates map[string]int) (why string) {
	if len(gates) == 0 {
		return reason.NoEngine.String()
	}
	most := 0
	for gate, times := range gates {
		if gate != reason.OK.String() && (times > most || times == most && gate < why) {
			why, most = gate, times
		}
	}
	return cmp.Or(why, reason.OK.String())
}

// GetRequest reads a request's record, and its run where it runs here.
func (s service) GetRequest(ctx context.Context, r *penstockv1.GetRequestRequest) (*penstockv1.GetRequestResponse, error) {
	if r.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "id is empty: say which request")
	}
	now := time.Now()
	answer := &penstockv1.GetRequestResponse{}
	call, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	rec, err := s.deps.Lookup(call, r.GetId())
	if err != nil {
		answer.Problem = err.Error()
	}
	answer.State = rec.State.String()
	answer.Tier, answer.Model, answer.Owner, answer.Attempt = rec.Tier, rec.Model, rec.Owner, rec.Attempt
	answer.Tries, answer.Canceled = count(rec.Tries), rec.Canceled
	if !rec.Opened.IsZero() {
		answer.OpenedSeconds, answer.DeadlineSeconds = now.Sub(rec.Opened).Seconds(), rec.Deadline.Sub(now).Seconds()
	}
	for _, a := range s.deps.Agents {
		if run, ok := a.Attempt(now, r.GetId()); ok {
			answer.Run = &penstockv1.Run{Node: a.State(now).Node, Attempt: run.Attempt, Seconds: run.Age, First: run.Relayed, SilentSeconds: run.Silent}
		}
	}
	return answer, nil
}
