package control

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	penstockv1 "penstock/proto/penstock/v1"
	"penstock/reason"
)

// TestORCA: any interval down to 100 ms, and figures a balancer can use.
func TestORCA(t *testing.T) {
	t.Parallel()
	conn := serve(t, Config{}, newFake("node-1").up()).dial()
	stream, err := conn.NewStream(t.Context(), &orcaService.Streams[0], "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")
	check(t, err)
	check(t, stream.SendMsg(&penstockv1.OrcaLoadReportRequest{ReportInterval: durationpb.New(time.Millisecond)}))
	check(t, stream.CloseSend())
	var begin time.Time
	for i := range 3 {
		var r penstockv1.OrcaLoadReport
		check(t, stream.RecvMsg(&r))
		if i == 0 {
			begin = time.Now()
		}
		for _, name := range []string{"kv", "running", "waiting", "age"} {
			if _, has := r.NamedMetrics[name]; !has {
				t.Errorf("report %d lacks %s: %v", i, name, &r)
			}
		}
		if r.ApplicationUtilization < 0 || r.ApplicationUtilization > 1 {
			t.Errorf("report %d: got %v, want 0 to 1", i, r.ApplicationUtilization)
		}
	}
	if took := time.Since(begin); took < 150*time.Millisecond {
		t.Errorf("two intervals took %v, want at least the floor of 100 ms each", took)
	}
}

// TestORCAWire: our names, their bytes.
func TestORCAWire(t *testing.T) {
	got, err := proto.Marshal(&penstockv1.OrcaLoadReport{MemUtilization: 1, NamedMetrics: map[string]float64{"kv": 1}, ApplicationUtilization: 1})
	check(t, err)
	one := "\x00\x00\x00\x00\x00\x00\xf0\x3f"
	if want := "\x11" + one + "\x42\x0d\x0a\x02kv\x11" + one + "\x49" + one; string(got) != want {
		t.Errorf("report: got %x, want %x", got, want)
	}
	request := penstockv1.OrcaLoadReportRequest{}
	check(t, proto.Unmarshal([]byte("\x0a\x02\x08\x02\x12\x01x"), &request))
	if request.ReportInterval.AsDuration() != 2*time.Second || !slices.Equal(request.RequestCostNames, []string{"x"}) {
		t.Errorf("request: got %v", &request)
	}
}

func TestPressure(t *testing.T) {
	for _, tc := range []struct {
		gate            reason.Reason
		kv              float64
		free, startable int
		want            float64
	}{
		{reason.OK, 0, 800, 800, 0},
		{reason.OK, 0.4, 200, 800, 0.75},
		{reason.OK, 0.3, 0, 0, 0.3},
		{reason.OK, 0.3, 900, 800, 0},
		{reason.KVHigh, 0.95, 0, 800, 1},
		{reason.Blind, 0, 800, 800, 1},
	} {
		if got := pressure(tc.gate, tc.kv, tc.free, tc.startable); got != tc.want {
			t.Errorf("pressure(%v, %v, %d, %d) = %v, want %v", tc.gate, tc.kv, tc.free, tc.startable, got, tc.want)
		}
	}
}
