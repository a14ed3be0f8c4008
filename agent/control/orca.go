package control

import (
	"time"

	"google.golang.org/grpc"

	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
)

const (
	// orcaGap is the shortest interval between two reports; one that asks for less, or
	// for none, gets it or orcaDefault. grpc-go's own service has 30 s.
	orcaGap, orcaDefault = 100 * time.Millisecond, time.Second
)

// orcaService is xds.service.orca.v3.OpenRcaService: load reports that any gRPC load
// balancer with ORCA understands.
var orcaService = grpc.ServiceDesc{
	ServiceName: "xds.service.orca.v3.OpenRcaService",
	HandlerType: (*any)(nil),
	Streams:     []grpc.StreamDesc{{StreamName: "StreamCoreMetrics", Handler: streamLoad, ServerStreams: true}},
	Metadata:    "xds/service/orca/v3/orca.proto",
}

func streamLoad(server any, stream grpc.ServerStream) error {
	s := server.(*Server)
	r := new(penstockv1.OrcaLoadReportRequest)
	if err := stream.RecvMsg(r); err != nil {
		return err
	}
	gap := orcaDefault
	if asked := r.GetReportInterval(); asked != nil {
		gap = max(asked.AsDuration(), orcaGap)
	}
	return s.watch(stream.Context(), gap, func(now time.Time) error { return stream.SendMsg(s.load(now)) })
}

// load is the mean over the engines of this process. application_utilization is the
// share of what may be started that is taken, 1 where nothing may start.
func (s *Server) load(now time.Time) *penstockv1.OrcaLoadReport {
	var taken, kv, age float64
	var running, waiting int
	for _, a := range s.deps.Agents {
		of := a.State(now)
		v := &of.View
		taken += pressure(v.Gate, v.KV, v.Freeness, of.Startable)
		kv += v.KV
		running += v.Running
		waiting += v.Waiting
		age = max(age, v.SampleAge.Seconds())
	}
	n := float64(len(s.deps.Agents))
	return &penstockv1.OrcaLoadReport{
		ApplicationUtilization: taken / n,
		NamedMetrics:           map[string]float64{"kv": kv / n, "running": float64(running), "waiting": float64(waiting), "age": age},
	}
}

// pressure is one engine's: free of startable tokens are not taken.
func pressure(gate reason.Reason, kv float64, free, startable int) float64 {
	switch {
	case gate != reason.OK:
		return 1
	case startable <= 0:
		return kv
	}
	return min(max(1-float64(free)/float64(startable), 0), 1)
}
