package nvml

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	restarts [causeEnd]prometheus.Counter
	widened  prometheus.Counter
	xids     *prometheus.CounterVec
	met      uint64 // bit i: the counters of GPU i exist
}

func newMetrics(reg prometheus.Registerer, latest func() Sample) (*metrics, error) {
	m := &metrics{
		widened: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_nvml_widened_total",
			Help: "Times the GPU's driver was slow and is asked every 250 ms instead of every 50 ms.",
		}),
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gpu_xid_errors_total",
			Help: "Error reports of the driver, by what they mean for serving.",
		}, []string{"gpu", "class"}),
	}
	restarts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_nvml_restarts_total",
		Help: "Times the GPU reading process had ended or could not start, by cause; it is started again after a pause.",
	}, []string{"cause"})
	for c := cause(1); c < causeEnd; c++ {
		m.restarts[c] = restarts.WithLabelValues(causes[c])
	}
	return m, errors.Join(reg.Register(restarts), reg.Register(m.widened), reg.Register(m.xids), reg.Register(page{latest}))
}

// meet creates a GPU's counters when it is first seen. Indices are below 64.
func (m *metrics) meet(gpu int) {
	if m.met&(1<<gpu) != 0 {
		return
	}
	m.met |= 1 << gpu
	for c := Class(1); c < classEnd; c++ {
		m.xids.WithLabelValues(strconv.Itoa(gpu), c.String())
	}
}

func (m *metrics) xid(gpu int, c Class) {
	m.xids.WithLabelValues(strconv.Itoa(gpu), c.String()).Inc()
}

// page makes the gauges when they are asked for: a value that is not current must
// not stay on the page.
type page struct{ latest func() Sample }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	readerState = desc("penstock_nvml_state", "1 for the state of the GPU reading; absent is normal on a node without a GPU.", "state")
	interval    = desc("penstock_nvml_interval_seconds", "Time between two readings of memory and utilization; 0 while there are none.")
	gpuState    = desc("penstock_gpu_state", "1 for the state of each of the engine's GPUs.", "gpu", "state")
	fault       = desc("penstock_gpu_fault", "The fatal XID for which this GPU's engine gets no work; 0 = none.", "gpu")
	age         = desc("penstock_gpu_sample_age_seconds", "Age of what was read last: fast is memory and utilization, slow the rest.", "gpu", "part")
	utilization = desc("penstock_gpu_utilization_ratio", "Part of the last 1/6 to 1 s in which any kernel ran.", "gpu")
	memoryUsed  = desc("penstock_gpu_memory_used_bytes", "Memory in use, by everybody; under MIG of the engine's parts.", "gpu")
	memoryTotal = desc("penstock_gpu_memory_total_bytes", "Memory there is; under MIG of the engine's parts.", "gpu")
	power       = desc("penstock_gpu_power_watts", "Power draw.", "gpu")
	temperature = desc("penstock_gpu_temperature_celsius", "Temperature of the chip.", "gpu")
	slowed      = desc("penstock_gpu_clocks_limited", "1 while clocks are held down, by reason.", "gpu", "reason")
	eccErrors   = desc("penstock_gpu_ecc_errors_total", "ECC errors since the driver was loaded.", "gpu", "kind")
	rows        = desc("penstock_gpu_remapped_rows", "Memory rows replaced for uncorrectable errors.", "gpu")
	rowsPending = desc("penstock_gpu_remap_pending", "1 while a memory row waits for a reset to be replaced.", "gpu")
	rowsFailed  = desc("penstock_gpu_remap_failed", "1 once a memory row could not be replaced.", "gpu")
)

// limits are the nvmlClocksEventReason bits that cost speed (nvml.h).
var limits = []struct {
	bit  uint64
	name string
}{
	{0x4, "power_cap"}, {0x20, "thermal"}, {0x8, "hardware"}, {0x40, "hardware_thermal"}, {0x80, "power_brake"}, {0x10, "sync_boost"},
}

// Describe is prometheus.Collector's.
func (p page) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		readerState, interval, gpuState, fault, age, utilization, memoryUsed, memoryTotal, power, temperature, slowed, eccErrors, rows, rowsPending, rowsFailed,
	} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (p page) Collect(ch chan<- prometheus.Metric) {
	s := p.latest()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for st := State(1); st < stateEnd; st++ {
		gauge(readerState, one(s.State == st), st.String())
	}
	gauge(interval, s.Every.Seconds())
	var shown uint64
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if bit := uint64(1) << g.Index; shown&bit == 0 { // a lost one's index may be another's by now
			shown |= bit
			g.collect(ch, gauge)
		}
	}
}

func (g *GPU) collect(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	gpu := strconv.Itoa(g.Index)
	for st := State(1); st < stateEnd; st++ {
		gauge(gpuState, one(g.State == st), gpu, st.String())
	}
	gauge(fault, float64(g.Fault), gpu)
	if !g.At.IsZero() {
		gauge(age, time.Since(g.At).Seconds(), gpu, "fast")
	}
	if !g.SlowAt.IsZero() {
		gauge(age, time.Since(g.SlowAt).Seconds(), gpu, "slow")
	}
	if !g.State.reads() {
		return
	}
	known := func(d *prometheus.Desc, v float64, labels ...string) {
		if v >= 0 {
			gauge(d, v, append([]string{gpu}, labels...)...)
		}
	}
	known(utilization, g.Utilization)
	known(memoryUsed, float64(g.MemoryUsed))
	known(memoryTotal, float64(g.MemoryTotal))
	if g.SlowAt.IsZero() {
		return
	}
	known(power, g.PowerWatts)
	known(temperature, g.Celsius)
	for _, l := range limits {
		known(slowed, one(g.Clocks&l.bit != 0), l.name)
	}
	known(rows, float64(g.RowsRemapped))
	known(rowsPending, one(g.RowsPending))
	known(rowsFailed, one(g.RowsExhausted))
	for kind, n := range map[string]int64{"corrected": g.Corrected, "uncorrected": g.Uncorrected} {
		if n >= 0 {
			ch <- prometheus.MustNewConstMetric(eccErrors, prometheus.CounterValue, float64(n), gpu, kind)
		}
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
