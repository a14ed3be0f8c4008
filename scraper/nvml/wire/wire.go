// Package wire is what penstock-nvml writes and penstock reads: one JSON object
// per line on the helper's stdout. Both come from one release, but one may be
// replaced before the other, so a line carries its version; fields may be added
// within one.
package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// The bounds of a line. A line of 32 GPUs with 7 MIG devices each has 27 KB.
const (
	Version = 1
	MaxLine = 64 << 10 // bytes, with its newline
	MaxGPUs = 32       // further ones are not read
	MaxMIG  = 8        // per GPU; hardware makes 7
	MaxXIDs = 16       // per line; further ones come with the next
	maxText = 96       // bytes of a name
)

// Unknown stands for a number that the driver does not give.
const Unknown = -1

// End says why a line is the helper's last one; "" while it goes on.
type End string

// The ends.
const (
	EndInit   End = "init"   // NVML cannot be used: Code says why
	EndHang   End = "hang"   // Call has not returned
	EndUnbind End = "unbind" // a driver leaves a GPU: everything is released
	EndCalls  End = "calls"  // no GPU answers any more: Code says why
)

// Line is one reading. Up and every At are nanoseconds since the helper's start on
// its monotonic clock.
type Line struct {
	V       int           `json:"v"`
	Seq     uint64        `json:"seq"` // from 1, without gaps
	Up      time.Duration `json:"up"`  // when it was written
	End     End           `json:"end,omitempty"`
	Code    int           `json:"code,omitempty"` // NVML's return code
	Call    string        `json:"call,omitempty"`
	Driver  string        `json:"driver,omitempty"`
	Missing []string      `json:"missing,omitempty"` // functions this driver lacks; in the first line with GPUs
	Every   time.Duration `json:"every,omitempty"`   // between two readings of memory and utilization; 0 before the first
	Widened int           `json:"widened,omitempty"` // how often Every became longer
	GPUs    []GPU         `json:"gpus,omitempty"`    // by index, ascending
	XIDs    []XID         `json:"xids,omitempty"`    // since the line before
}

// GPU is one device. Memory and utilization were read at At, all below Slow at Slow.
type GPU struct {
	I     int           `json:"i"`    // NVML's index: PCI order
	ID    string        `json:"id"`   // UUID; "" where even that failed
	Code  int           `json:"code"` // of the last reading: 0, or why there is none
	At    time.Duration `json:"at"`
	Util  int           `json:"util"` // percent of time in which any kernel ran; Unknown under MIG
	Used  int64         `json:"used"` // bytes
	Total int64         `json:"total"`
	MIG   bool          `json:"mig,omitempty"`
	Parts []Part        `json:"parts,omitempty"` // of a GPU in MIG mode

	Slow          time.Duration `json:"slow"` // 0 = not read yet
	Milliwatts    int           `json:"mw"`
	Celsius       int           `json:"c"`
	Clocks        uint64        `json:"clocks"` // NVML's bits: why clocks are below the maximum
	Corrected     int64         `json:"ecc_c"`  // volatile ECC errors: since the driver was loaded
	Uncorrected   int64         `json:"ecc_u"`
	RowsRemapped  int           `json:"rows"` // for uncorrectable errors
	RowsPending   bool          `json:"rows_pending,omitempty"`
	RowsExhausted bool          `json:"rows_failed,omitempty"` // a remapping failed
}

// Part is one MIG device.
type Part struct {
	ID       string `json:"id"`
	Instance int    `json:"gi"` // GPU instance; Unknown where the driver does not say
	Used     int64  `json:"used"`
	Total    int64  `json:"total"`
}

// XID is one error report of the driver.
type XID struct {
	I        int    `json:"i"` // GPU index
	Code     uint64 `json:"code"`
	Instance int    `json:"gi"` // MIG's GPU instance; Unknown: the whole GPU
}

// NewGPU is a GPU of which nothing is known.
func NewGPU(i int, id string) GPU {
	return GPU{
		I: i, ID: id, Util: Unknown, Used: Unknown, Total: Unknown, Milliwatts: Unknown, Celsius: Unknown,
		Corrected: Unknown, Uncorrected: Unknown, RowsRemapped: Unknown,
	}
}

// Parse reads one line, without its newline. A line that breaks a bound is an
// error: it is not a reading.
func Parse(line []byte) (Line, error) {
	var l Line
	if len(line) > MaxLine {
		return l, fmt.Errorf("line of %d bytes; the limit is %d", len(line), MaxLine)
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return Line{}, fmt.Errorf("not a line of penstock-nvml: %w", err)
	}
	if l.V != Version {
		return Line{}, fmt.Errorf("line version %d, want %d: install penstock and penstock-nvml of one release", l.V, Version)
	}
	if err := l.check(); err != nil {
		return Line{}, err
	}
	return l, nil
}

func (l *Line) check() error {
	switch l.End {
	case "", EndInit, EndHang, EndUnbind, EndCalls:
	default:
		return fmt.Errorf("unknown end %q", l.End)
	}
	switch {
	case len(l.GPUs) > MaxGPUs || len(l.XIDs) > MaxXIDs || len(l.Missing) > 64 || len(l.Call) > maxText || len(l.Driver) > maxText:
		return fmt.Errorf("%d GPUs, %d XIDs, %d missing, or a name above its bound", len(l.GPUs), len(l.XIDs), len(l.Missing))
	case l.Up < 0 || l.Every < 0 || l.Every > time.Minute || l.Widened < 0:
		return fmt.Errorf("up %d, every %d, widened %d: out of range", l.Up, l.Every, l.Widened)
	}
	last := -1
	for i := range l.GPUs {
		g := &l.GPUs[i]
		if g.I <= last {
			return fmt.Errorf("GPU %d after %d", g.I, last)
		}
		last = g.I
		if err := g.check(l.Up); err != nil {
			return fmt.Errorf("GPU %d: %w", g.I, err)
		}
	}
	for _, x := range l.XIDs {
		if x.I < 0 || x.I >= MaxGPUs {
			return fmt.Errorf("XID %d of GPU %d", x.Code, x.I)
		}
	}
	return nil
}

func (g *GPU) check(up time.Duration) error {
	switch {
	case g.I >= MaxGPUs || len(g.ID) > maxText || len(g.Parts) > MaxMIG:
		return fmt.Errorf("index, name of %d bytes or %d MIG devices above its bound", len(g.ID), len(g.Parts))
	case g.At < 0 || g.At > up || g.Slow < 0 || g.Slow > up:
		return fmt.Errorf("read at %d and %d, written at %d", g.At, g.Slow, up)
	case g.Util < Unknown || g.Util > 100:
		return fmt.Errorf("utilization %d %%", g.Util)
	case !memory(g.Used, g.Total):
		return fmt.Errorf("memory %d of %d bytes", g.Used, g.Total)
	case g.Milliwatts < Unknown || g.Celsius < -273 || g.Celsius > 1000 || g.Corrected < Unknown || g.Uncorrected < Unknown || g.RowsRemapped < Unknown:
		return fmt.Errorf("%d mW, %d °C, ECC %d and %d, %d rows: out of range", g.Milliwatts, g.Celsius, g.Corrected, g.Uncorrected, g.RowsRemapped)
	}
	for _, p := range g.Parts {
		if len(p.ID) > maxText || !memory(p.Used, p.Total) {
			return fmt.Errorf("MIG device: name of %d bytes, memory %d of %d bytes", len(p.ID), p.Used, p.Total)
		}
	}
	return nil
}

func memory(used, total int64) bool {
	return used >= Unknown && total >= Unknown && (used <= total || total == Unknown) && total <= 1<<50
}
