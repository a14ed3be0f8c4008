package control

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
)

// Abort stops a request on every agent of this process. The record's cancel is the
// truth; this one is faster.
func (s service) Abort(_ context.Context, r *penstockv1.AbortRequest) (*penstockv1.AbortResponse, error) {
	if r.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "id is empty: say which request")
	}
	found := false
	for _, a := range s.deps.Agents {
		found = a.Cancel(r.GetId(), r.GetAttempt()) || found
	}
	if found {
		s.running.Inc()
	} else {
		s.unknown.Inc()
	}
	s.log.Debug("abort by grpc", "id", r.GetId(), "attempt", r.GetAttempt(), "running", found)
	return &penstockv1.AbortResponse{Running: found}, nil
}

// Drain makes one agent take no more work.
func (s service) Drain(_ context.Context, r *penstockv1.DrainRequest) (*penstockv1.DrainResponse, error) {
	a, err := s.named(time.Now(), r.GetNode())
	if err != nil {
		return nil, err
	}
	return &penstockv1.DrainResponse{InflightRequests: count(a.Pause())}, nil
}

// Resume ends the drain of one agent.
func (s service) Resume(_ context.Context, r *penstockv1.ResumeRequest) (*penstockv1.ResumeResponse, error) {
	a, err := s.named(time.Now(), r.GetNode())
	if err != nil {
		return nil, err
	}
	was, err := a.Resume()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &penstockv1.ResumeResponse{WasDraining: was}, nil
}
