package nvml

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
	"penstock/scraper/nvml/wire"
)

var t0 = time.Unix(1000, 0)

func gpu(i int, id string) wire.GPU {
	g := wire.NewGPU(i, id)
	g.At, g.Util, g.Used, g.Total = time.Second, 50, 10, 100
	return g
}

func line(gpus ...wire.GPU) *wire.Line {
	return &wire.Line{V: 1, Up: 2 * time.Second, Every: 50 * time.Millisecond, GPUs: gpus}
}

func with(l *wire.Line, xids ...wire.XID) *wire.Line {
	l.XIDs = xids
	return l
}

func code(g wire.GPU, n int) wire.GPU {
	g.Code = n
	return g
}

func mig(g wire.GPU) wire.GPU {
	g.MIG, g.Util = true, wire.Unknown
	g.Parts = []wire.Part{{ID: "MIG-a", Instance: 7, Used: 1, Total: 10}, {ID: "MIG-b", Instance: 8, Used: 2, Total: 20}}
	return g
}

// brief is what a step of a script leads to.
type brief struct {
	State  State
	Reason reason.Reason
	GPUs   []State
	Fault  uint64 // of the first GPU
}

func (v *view) brief() brief {
	b := brief{State: v.last.State, Reason: v.last.Reason}
	for i, g := range v.last.GPUs {
		b.GPUs = append(b.GPUs, g.State)
		if i == 0 {
			b.Fault = g.Fault
		}
	}
	return b
}

func TestView(t *testing.T) {
	recovered := &wire.Line{Call: "recovered"}
	a, b := gpu(0, "GPU-a"), gpu(1, "GPU-b")
	ok := []State{OK, OK}
	xid := func(i int, n uint64) wire.XID { return wire.XID{I: i, Code: n, Instance: wire.Unknown} }
	type step struct {
		line *wire.Line
		want brief
	}
	for name, script := range map[string]struct {
		use   []string
		steps []step
	}{
		"readings": {nil, []step{{line(a, b), brief{OK, reason.OK, ok, 0}}}},
		"no library": {nil, []step{
			{&wire.Line{End: wire.EndInit, Code: libraryNotFound}, brief{Absent, reason.OK, nil, 0}},
		}},
		"initialising says nothing": {nil, []step{{line(a, b), brief{OK, reason.OK, ok, 0}}, {&wire.Line{}, brief{OK, reason.OK, ok, 0}}}},
		"driver not loaded": {nil, []step{
			{line(a, b), brief{OK, reason.OK, ok, 0}},
			{&wire.Line{End: wire.EndInit, Code: driverNotLoaded}, brief{Absent, reason.OK, []State{Absent, Absent}, 0}},
		}},
		"permission":          {nil, []step{{&wire.Line{End: wire.EndInit, Code: noPermission}, brief{Permission, reason.OK, nil, 0}}}},
		"access was revoked":  {nil, []step{{&wire.Line{End: wire.EndCalls, Code: unknownError}, brief{Permission, reason.OK, nil, 0}}}},
		"a call hangs":        {nil, []step{{line(a), brief{OK, reason.OK, []State{OK}, 0}}, {&wire.Line{End: wire.EndHang, Call: "x"}, brief{Stuck, reason.OK, []State{Stuck}, 0}}}},
		"a driver leaves":     {nil, []step{{&wire.Line{End: wire.EndUnbind}, brief{Absent, reason.OK, nil, 0}}}},
		"none of the engine":  {[]string{"5"}, []step{{line(a, b), brief{Absent, reason.OK, nil, 0}}}},
		"the engine uses one": {[]string{"GPU-b"}, []step{{line(code(a, gpuIsLost), b), brief{OK, reason.OK, []State{OK}, 0}}}},
		"lost closes, answering opens": {nil, []step{
			{line(a, code(b, gpuIsLost)), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
			{line(a, code(b, resetRequired)), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
			{line(a, b), brief{OK, reason.OK, ok, 0}},
		}},
		"lost stays lost without a helper": {nil, []step{
			{line(a, code(b, gpuIsLost)), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
			{&wire.Line{End: wire.EndInit, Code: driverNotLoaded}, brief{Absent, reason.GPULost, []State{Absent, Lost}, 0}},
		}},
		"not listed any more is lost": {nil, []step{
			{line(a, b), brief{OK, reason.OK, ok, 0}},
			{line(gpu(0, "GPU-b")), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
		}},
		"listed without a name": {nil, []step{
			{line(a, b), brief{OK, reason.OK, ok, 0}},
			{line(a, code(wire.NewGPU(1, ""), gpuIsLost)), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
			{line(a, b), brief{OK, reason.OK, ok, 0}},
		}},
		"a new engine runs without the lost one": {nil, []step{
			{line(a, code(b, gpuIsLost)), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
			{recovered, brief{Lost, reason.OK, []State{OK}, 0}},
			{line(a, code(b, gpuIsLost)), brief{OK, reason.OK, []State{OK}, 0}},
			{line(a, b), brief{OK, reason.OK, ok, 0}},
			{line(a, code(b, gpuIsLost)), brief{Lost, reason.GPULost, []State{OK, Lost}, 0}},
		}},
		"fatal XID closes until the engine is new": {nil, []step{
			{with(line(a, b), xid(0, 48)), brief{OK, reason.GPUFault, ok, 48}},
			{line(a, b), brief{OK, reason.GPUFault, ok, 48}},
			{&wire.Line{End: wire.EndHang}, brief{Stuck, reason.GPUFault, []State{Stuck, Stuck}, 48}},
			{line(a, b), brief{OK, reason.GPUFault, ok, 48}},
			{recovered, brief{OK, reason.OK, ok, 0}},
			{line(a, b), brief{OK, reason.OK, ok, 0}},
		}},
		"a reset ends a fault": {nil, []step{
			{with(line(a, b), xid(0, 79)), brief{OK, reason.GPUFault, ok, 79}},
			{line(code(a, gpuIsLost), b), brief{Lost, reason.GPULost, []State{Lost, OK}, 79}},
			{line(a, b), brief{OK, reason.OK, ok, 0}},
		}},
		"application and unknown XIDs close nothing": {nil, []step{
			{with(line(a, b), xid(0, 13), xid(0, 31), xid(0, 43), xid(1, 45), xid(1, 63), xid(1, 12345)), brief{OK, reason.OK, ok, 0}},
		}},
		"fatal XID of another engine's GPU": {[]string{"0"}, []step{{with(line(a, b), xid(1, 79)), brief{OK, reason.OK, []State{OK}, 0}}}},
		"MIG":                               {nil, []step{{line(mig(a)), brief{MIG, reason.OK, []State{MIG}, 0}}}},
		"fatal XID of another's MIG part": {[]string{"MIG-b"}, []step{
			{with(line(mig(a)), wire.XID{I: 0, Code: 94, Instance: 7}), brief{MIG, reason.OK, []State{MIG}, 0}},
			{with(line(mig(a)), wire.XID{I: 0, Code: 94, Instance: 8}), brief{MIG, reason.GPUFault, []State{MIG}, 94}},
		}},
		"fatal XID of the whole GPU under MIG": {[]string{"MIG-b"}, []step{{with(line(mig(a)), xid(0, 79)), brief{MIG, reason.GPUFault, []State{MIG}, 79}}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{use: selection{all: script.use == nil, want: script.use}}
			for i, s := range script.steps {
				now := t0.Add(time.Duration(i) * time.Second)
				if s.line == recovered {
					v.recovered(now)
				} else {
					l := *s.line
					l.Up += time.Duration(i) * time.Second
					v.line(now, &l)
				}
				if diff := cmp.Diff(s.want, v.brief()); diff != "" {
					t.Fatalf("after step %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestViewConverts(t *testing.T) {
	g := gpu(3, "GPU-a")
	g.Slow, g.Milliwatts, g.Celsius, g.Clocks, g.Uncorrected, g.RowsPending = 500*time.Millisecond, 123_400, 61, 4, 2, true
	v := view{use: selection{all: true}}
	v.line(t0.Add(2*time.Second), line(g))
	want := []GPU{{
		Index: 3, UUID: "GPU-a", State: OK, At: t0.Add(time.Second), Utilization: .5, MemoryUsed: 10, MemoryTotal: 100,
		SlowAt: t0.Add(500 * time.Millisecond), PowerWatts: 123.4, Celsius: 61, Clocks: 4, Corrected: -1, Uncorrected: 2, RowsRemapped: -1, RowsPending: true,
	}}
	if diff := cmp.Diff(want, v.last.GPUs); diff != "" {
		t.Error(diff)
	}
	v = view{use: selection{want: []string{"MIG-b"}}}
	v.line(t0.Add(2*time.Second), line(mig(g)))
	if got := v.last.GPUs[0]; got.MemoryUsed != 2 || got.MemoryTotal != 20 || got.Utilization >= 0 {
		t.Errorf("of the engine's part: %d of %d bytes, utilization %v; want 2 of 20, none", got.MemoryUsed, got.MemoryTotal, got.Utilization)
	}
}

// TestDelayedLinesAreOld: lines that waited in the pipe, because this process was
// stopped, do not pass for new.
func TestDelayedLinesAreOld(t *testing.T) {
	v := view{use: selection{all: true}}
	v.line(t0.Add(2*time.Second), line(gpu(0, "GPU-a")))
	v.line(t0.Add(60*time.Second), line(gpu(0, "GPU-a")))
	if got, want := v.last.GPUs[0].At, t0.Add(time.Second); !got.Equal(want) {
		t.Errorf("read at %v, want %v", got, want)
	}
}

func TestVisible(t *testing.T) {
	for _, c := range []struct {
		value string
		set   bool
		want  selection
	}{
		{"", false, selection{all: true}},
		{"", true, selection{}},
		{"-1", true, selection{}},
		{"0,2", true, selection{want: []string{"0", "2"}}},
		{"1, -1, 2", true, selection{want: []string{"1"}}},
		{"GPU-8932f937,MIG-1", true, selection{want: []string{"GPU-8932f937", "MIG-1"}}},
		{"GPU-", true, selection{}},
		{"99", true, selection{}},
	} {
		got := visible(c.value, c.set)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(selection{})); diff != "" {
			t.Errorf("visible(%q, %v): %s", c.value, c.set, diff)
		}
	}
}

func TestXIDTable(t *testing.T) {
	for _, n := range []uint64{48, 64, 74, 79, 94, 95, 119, 120} {
		if got := lookup(n).class; got != Fatal {
			t.Errorf("XID %d is %v, want fatal", n, got)
		}
	}
	for _, n := range []uint64{13, 31, 43, 45} {
		if got := lookup(n).class; got != Application {
			t.Errorf("XID %d is %v, want application", n, got)
		}
	}
}
