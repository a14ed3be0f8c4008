package nvml

import (
	"fmt"
	"slices"
	"time"

	"penstock/reason"
	"penstock/scraper/nvml/wire"
)

// NVML's return codes that are told apart (nvml.h, nvmlReturn_t).
const (
	success         = 0
	noPermission    = 4
	driverNotLoaded = 9
	libraryNotFound = 12
	gpuIsLost       = 15
	resetRequired   = 16
	versionMismatch = 18
	gpuNotFound     = 28
	unknownError    = 999
)

// why turns a return code into a state and a text. A code that NVML does not
// explain (999) is what it says once a container's device access was revoked.
func why(code int) (State, string) {
	switch code {
	case success:
		return OK, ""
	case noPermission:
		return Permission, "the GPU's device may not be opened"
	case unknownError:
		return Permission, "unknown error; in a container: access to the device was revoked"
	case driverNotLoaded:
		return Absent, "driver not loaded"
	case libraryNotFound:
		return Absent, "libnvidia-ml.so.1 not found"
	case versionMismatch:
		return Absent, "driver and library are of different versions: a driver update needs its reload"
	case gpuIsLost:
		return Lost, "GPU is lost"
	case resetRequired:
		return Lost, "GPU needs a reset"
	case gpuNotFound:
		return Absent, "no GPU"
	}
	return Absent, fmt.Sprintf("NVML error %d", code)
}

// view makes Samples of lines. It remembers the engine's GPUs over helpers and
// restarts: what was lost or broke stays so until something shows that it is well.
// Not safe for concurrent use.
type view struct {
	use   selection
	start time.Time // of the helper, as its clock and ours agree best; zero: a new helper
	last  Sample
	off   []string // UUIDs of lost GPUs that the engine runs without
}

// seen is an XID of one of the engine's GPUs.
type seen struct {
	gpu  int
	code uint64
}

// line takes a helper's reading at now and returns the engine's XIDs in it.
func (v *view) line(now time.Time, l *wire.Line) []seen {
	// A line may have waited in the pipe: the one that came fastest sets the clock.
	if start := now.Add(-l.Up); v.start.IsZero() || start.Before(v.start) {
		v.start = start
	}
	if l.End != "" {
		v.ended(now, l)
		return nil
	}
	if l.Every == 0 {
		return nil // NVML is being initialised: nothing is known yet
	}
	s := Sample{At: now, State: OK, Driver: l.Driver, Every: l.Every}
	for i := range l.GPUs {
		if g := &l.GPUs[i]; v.use.has(g) {
			s.GPUs = append(s.GPUs, v.gpu(g))
		}
	}
	v.keep(&s)
	found := v.xids(&s, l)
	v.last = s
	v.judge(l)
	return found
}

// gpu converts one reading.
func (v *view) gpu(g *wire.GPU) GPU {
	out := GPU{
		Index: g.I, UUID: g.ID, At: v.time(g.At), SlowAt: v.time(g.Slow),
		Utilization: wire.Unknown, MemoryUsed: g.Used, MemoryTotal: g.Total, PowerWatts: wire.Unknown, Celsius: float64(g.Celsius),
		Clocks: g.Clocks, Corrected: g.Corrected, Uncorrected: g.Uncorrected,
		RowsRemapped: g.RowsRemapped, RowsPending: g.RowsPending, RowsExhausted: g.RowsExhausted,
	}
	if g.Util >= 0 {
		out.Utilization = float64(g.Util) / 100
	}
	if g.Milliwatts >= 0 {
		out.PowerWatts = float64(g.Milliwatts) / 1000
	}
	if out.State, _ = why(g.Code); out.State == OK && g.MIG {
		out.State = MIG
		if parts := v.use.parts(g); len(parts) > 0 {
			out.MemoryUsed, out.MemoryTotal = 0, 0
			for _, p := range parts {
				out.MemoryUsed += max(p.Used, 0)
				out.MemoryTotal += max(p.Total, 0)
			}
		}
	}
	return out
}

func (v *view) time(up time.Duration) time.Time {
	if up == 0 {
		return time.Time{}
	}
	return v.start.Add(up)
}

// keep carries over what the line does not say. A GPU of the engine that the driver
// does not list any more is lost; one that is listed without its UUID is known by its
// index.
func (v *view) keep(s *Sample) {
	for _, old := range v.last.GPUs {
		i := slices.IndexFunc(s.GPUs, func(g GPU) bool { return g.UUID == old.UUID || g.UUID == "" && g.Index == old.Index })
		switch {
		case i >= 0:
			s.GPUs[i].UUID = old.UUID
			if s.GPUs[i].State == Lost || old.State != Lost { // one that was lost and answers again has been reset
				s.GPUs[i].Fault = old.Fault
			}
		case old.UUID != "" && len(s.GPUs) < wire.MaxGPUs:
			old.State = Lost
			s.GPUs = append(s.GPUs, old)
		}
	}
	s.GPUs = slices.DeleteFunc(s.GPUs, func(g GPU) bool { return g.State == Lost && slices.Contains(v.off, g.UUID) })
	v.off = slices.DeleteFunc(v.off, func(id string) bool {
		return slices.ContainsFunc(s.GPUs, func(g GPU) bool { return g.UUID == id })
	})
}

// xids sets faults. An XID of another MIG instance is not the engine's.
func (v *view) xids(s *Sample, l *wire.Line) (found []seen) {
	for _, x := range l.XIDs {
		i := slices.IndexFunc(s.GPUs, func(g GPU) bool { return g.Index == x.I && g.State != Absent })
		if i < 0 || x.Instance >= 0 && !v.owns(l, x) {
			continue
		}
		found = append(found, seen{x.I, x.Code})
		if lookup(x.Code).class == Fatal {
			s.GPUs[i].Fault = x.Code
		}
	}
	return found
}

// owns reports whether the GPU instance of x is one of the engine's.
func (v *view) owns(l *wire.Line, x wire.XID) bool {
	for i := range l.GPUs {
		if g := &l.GPUs[i]; g.I == x.I && g.MIG {
			return slices.ContainsFunc(v.use.parts(g), func(p wire.Part) bool { return p.Instance == x.Instance || p.Instance == wire.Unknown })
		}
	}
	return true
}

// judge folds the GPUs' states into the sample's. l is nil where nothing is read.
func (v *view) judge(l *wire.Line) {
	s := &v.last
	s.Reason = reason.OK
	if l != nil && len(s.GPUs) == 0 {
		s.State, s.Detail = Absent, "no GPU of this engine among "+fmt.Sprint(len(l.GPUs))
	}
	for _, g := range s.GPUs {
		switch {
		case g.State == Lost:
			s.Reason = reason.GPULost
		case g.Fault != 0 && s.Reason == reason.OK:
			s.Reason = reason.GPUFault
		}
		if l == nil {
			continue
		}
		switch {
		case g.State == Lost:
			s.State, s.Detail = Lost, fmt.Sprintf("GPU %d is lost", g.Index)
		case g.State != OK && s.State != Lost:
			s.State = g.State
		}
	}
	if s.Reason == reason.GPUFault && s.Detail == "" {
		for _, g := range s.GPUs {
			if g.Fault != 0 {
				s.Detail = fmt.Sprintf("GPU %d: XID %d, %s", g.Index, g.Fault, lookup(g.Fault).text)
			}
		}
	}
}

// ended takes a helper's last line.
func (v *view) ended(now time.Time, l *wire.Line) {
	switch l.End {
	case wire.EndHang:
		v.gone(now, Stuck, "NVML call "+l.Call+" does not return")
	case wire.EndUnbind:
		v.gone(now, Absent, "driver leaves a GPU; all devices released")
	default:
		state, text := why(l.Code)
		v.gone(now, state, text)
	}
}

// gone takes that no readings come. What was lost or broke stays so.
func (v *view) gone(now time.Time, state State, detail string) {
	v.start = time.Time{}
	s := v.last
	s.At, s.State, s.Detail, s.Every = now, state, detail, 0
	s.GPUs = slices.Clone(s.GPUs)
	for i := range s.GPUs {
		if s.GPUs[i].State != Lost {
			s.GPUs[i].State = state
		}
	}
	v.last = s
	v.judge(nil)
}

// recovered forgets losses and faults: the engine's process is new, and it works. A
// GPU that is lost is not one of its any more, until it answers.
func (v *view) recovered(now time.Time) {
	s := v.last
	s.At, s.GPUs = now, nil
	for _, g := range v.last.GPUs {
		if g.State == Lost {
			v.off = append(v.off, g.UUID)
			continue
		}
		g.Fault = 0
		s.GPUs = append(s.GPUs, g)
	}
	if s.State.reads() || s.State == Lost {
		s.Detail = "" // it was about what is forgotten
	}
	v.last = s
	v.judge(nil)
}
