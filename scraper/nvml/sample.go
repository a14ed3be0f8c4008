package nvml

import (
	"time"

	"penstock/reason"
)

// State is what is known of the GPUs, or of one. Its String is the metric label.
type State uint8

// The states.
const (
	Absent     State = iota + 1 // no helper, library, driver or GPU: normal on a node without one
	OK                          // readings come
	Stuck                       // a call, or the helper, does not return
	Lost                        // fallen off the bus, or needs a reset
	MIG                         // readings come; partitioned: memory per part, no utilization
	Permission                  // the device may not be opened (any more)
	stateEnd
)

var states = [stateEnd]string{"unknown", "absent", "ok", "stuck", "lost", "mig", "permission"}

// String is the stable name, "unknown" for a value that is none.
func (s State) String() string {
	if s >= stateEnd {
		s = 0
	}
	return states[s]
}

// MarshalText writes the name, in /debug/state for one.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sample is what is known of the engine's GPUs at At. Its slices are its own.
type Sample struct {
	At     time.Time
	State  State         // of the reading; Lost where one GPU of the engine is
	Reason reason.Reason // OK; GPULost or GPUFault: start nothing on this engine
	Detail string        // why not ok, for logs; "" = nothing to say
	Driver string        // its version; "" = not known
	Every  time.Duration // between two readings of memory and utilization; 0 = none come
	GPUs   []GPU         // those of the engine, by index; the last known while none are read
}

// GPU is one device. What is not known is negative.
type GPU struct {
	Index int
	UUID  string
	State State
	Fault uint64    // the fatal XID that closes the gate; 0 = none
	At    time.Time // of memory and utilization; zero = never read

	Utilization float64 // 0..1: the part of the driver's last 1/6..1 s in which a kernel ran
	MemoryUsed  int64   // bytes, by everybody on it; of the engine's parts under MIG
	MemoryTotal int64   // bytes

	SlowAt        time.Time // of what follows; zero = never read
	PowerWatts    float64
	Celsius       float64
	Clocks        uint64 // nvmlClocksEventReason bits
	Corrected     int64  // ECC errors since the driver was loaded
	Uncorrected   int64
	RowsRemapped  int  // rows replaced for uncorrectable errors
	RowsPending   bool // one waits for a reset
	RowsExhausted bool // one could not be replaced
}

// reads reports whether values of a GPU in this state are current.
func (s State) reads() bool { return s == OK || s == MIG }
