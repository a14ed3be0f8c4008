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
)

// lanesTop is how many lanes are listed unless asked otherwise.
const lanesTop = 20

// Lanes lists what waits, and why by the engines that this agent knows.
func (s service) Lanes(ctx context.Context, r *penstockv1.LanesRequest) (*penstockv1.LanesResponse, error) {
	now := time.Now()
	engines, _ := s.cluster(ctx)
	backlog := s.deps.Backlog(now)
	lanes := make([]*penstockv1.Lane, len(backlog))
	for i, b := range backlog {
		l := &penstockv1.Lane{
			Tier: b.Tier, Model: b.Model, BacklogRequests: count(b.Requests), BacklogTokens: float64(b.Tokens),
			OldestSeconds: b.Oldest.Seconds(), RunningRequests: count(b.Running),
		}
		limit(l, engines, s.deps.Width)
		lanes[i] = l
	}
	slices.SortStableFunc(lanes, func(a, b *penstockv1.Lane) int {
		return cmp.Or(cmp.Compare(b.BacklogRequests, a.BacklogRequests), cmp.Compare(b.OldestSeconds, a.OldestSeconds))
	})
	top := int(r.GetTop())
	if top <= 0 {
		top = lanesTop
	}
	return &penstockv1.LanesResponse{Lanes: lanes[:min(top, len(lanes))], Total: count(len(lanes))}, nil
}

// limit sets the lane's width, width requests on each usable engine of its model, and
// why what waits does not start.
func limit(l *penstockv1.Lane, engines []*penstockv1.EngineState, width int) {
	gates, n := map[string]int{}, 0
	for _, e := range engines {
		if e.Ready && slices.Contains(e.Models, l.Model) {
			gates[e.Gate]++
			n++
		}
	}
	l.Width = count(n * width)
	switch {
	case l.BacklogRequests == 0:
	case n == 0:
		l.LimitedBy = reason.NoEngine.String()
	case width > 0 && l.RunningRequests >= l.Width:
		l.LimitedBy = "lane_width"
	default:
		delete(gates, reason.OK.String())
		for gate, times := range gates {
			if most := gates[l.LimitedBy]; times > most || times == most && gate < l.LimitedBy {
				l.LimitedBy = gate
			}
		}
		l.LimitedBy = cmp.Or(l.LimitedBy, reason.OK.String()) // every engine takes work: it starts now
	}
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
