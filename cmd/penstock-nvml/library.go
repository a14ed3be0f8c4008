//go:build cgo && linux

package main

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"penstock/scraper/nvml/wire"
)

// Calling a function that the library lacks ends the process (exit 127), so each is
// looked up before it is called. functions are those whose absence is told;
// fallbacks are asked where a newer one is absent.
var (
	functions = []string{
		"nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates",
		"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons",
		"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
		"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
		"nvmlSystemGetDriverVersion", "nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents",
		"nvmlSystemEventSetCreate", "nvmlSystemRegisterEvents", "nvmlSystemEventSetWait", "nvmlShutdown",
	}
	fallbacks = []string{"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons"}
)

const niceness = 10

// driver is NVML through go-nvml.
type driver struct {
	calls *calls
	nvml  nvml.Interface
	has   map[string]bool
	lacks []string

	devices map[int]nvml.Device               // by index
	parts   map[int][]nvml.Device             // MIG devices, as in the GPU's Parts
	xids    nvml.EventSet                     // nil = not to be had
	drivers *nvml.SystemEventSetCreateRequest // likewise
	data    [128]nvml.SystemEventData_v1      // as many elements as bytes are told: nvml.h does not say which counts
	pin     runtime.Pinner
}

func newLibrary(c *calls) library {
	yield()
	return &driver{calls: c, nvml: nvml.New(), has: map[string]bool{}, devices: map[int]nvml.Device{}, parts: map[int][]nvml.Device{}}
}

// yield lowers the priority of all threads there are; later ones inherit it. The
// engine and penstock go first. Where it is not allowed nothing is lost.
func yield() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, niceness)
		}
	}
}

// call makes one call of a function, where the library has it.
func (d *driver) call(name string, f func() nvml.Return) int {
	if !d.has[name] {
		return functionNotFound
	}
	return d.calls.do(name, 0, func() int { return int(f()) })
}

func (d *driver) init() int {
	code := d.calls.do("nvmlInit", initWithin, func() int { return int(d.nvml.Init()) })
	if code != success {
		return code
	}
	for _, name := range append(fallbacks, functions...) {
		d.has[name] = d.nvml.Extensions().LookupSymbol(name) == nil
		if !d.has[name] && slices.Contains(functions, name) {
			d.lacks = append(d.lacks, name)
		}
	}
	return success
}

func (d *driver) missing() []string { return d.lacks }

func (d *driver) driver() (version string) {
	d.call("nvmlSystemGetDriverVersion", func() (ret nvml.Return) {
		version, ret = d.nvml.SystemGetDriverVersion()
		return ret
	})
	return version
}

func (d *driver) gpus() ([]wire.GPU, int) {
	n := 0
	code := d.calls.do("nvmlDeviceGetCount", 0, func() (code int) {
		count, ret := d.nvml.DeviceGetCount()
		n = min(count, wire.MaxGPUs)
		return int(ret)
	})
	if code != success {
		return nil, code
	}
	var gpus []wire.GPU
	for i := range n {
		g := wire.NewGPU(i, "")
		g.Code = d.calls.do("nvmlDeviceGetHandleByIndex", 0, func() int {
			dev, ret := d.nvml.DeviceGetHandleByIndex(i)
			d.devices[i] = dev
			return int(ret)
		})
		if g.Code == success {
			d.call("nvmlDeviceGetUUID", func() (ret nvml.Return) {
				g.ID, ret = d.devices[i].GetUUID()
				return ret
			})
			d.partition(&g)
		}
		gpus = append(gpus, g)
	}
	d.listen(gpus)
	return gpus, success
}

// partition reads whether g is in MIG mode and which parts it has.
func (d *driver) partition(g *wire.GPU) {
	dev := d.devices[g.I]
	mode := 0
	code := d.call("nvmlDeviceGetMigMode", func() (ret nvml.Return) {
		mode, _, ret = dev.GetMigMode()
		return ret
	})
	g.MIG, g.Parts, d.parts[g.I] = code == success && mode == nvml.DEVICE_MIG_ENABLE, nil, nil
	if !g.MIG {
		return
	}
	n := 0
	d.call("nvmlDeviceGetMaxMigDeviceCount", func() (ret nvml.Return) {
		n, ret = dev.GetMaxMigDeviceCount()
		return ret
	})
	for i := range min(n, wire.MaxMIG) {
		var part nvml.Device
		code := d.call("nvmlDeviceGetMigDeviceHandleByIndex", func() (ret nvml.Return) {
			part, ret = dev.GetMigDeviceHandleByIndex(i)
			return ret
		})
		if code != success { // no part at this place
			continue
		}
		p := wire.Part{Instance: wire.Unknown, Used: wire.Unknown, Total: wire.Unknown}
		d.call("nvmlDeviceGetUUID", func() (ret nvml.Return) {
			p.ID, ret = part.GetUUID()
			return ret
		})
		d.call("nvmlDeviceGetGpuInstanceId", func() nvml.Return {
			id, ret := part.GetGpuInstanceId()
			if ret == nvml.SUCCESS {
				p.Instance = id
			}
			return ret
		})
		g.Parts, d.parts[g.I] = append(g.Parts, p), append(d.parts[g.I], part)
	}
}

func (d *driver) fast(g *wire.GPU) {
	dev := d.devices[g.I]
	g.Used, g.Total, g.Code = d.memory(dev)
	if g.MIG {
		parts := append([]wire.Part(nil), g.Parts...) // the line before may still be being written
		for i := range parts {
			parts[i].Used, parts[i].Total, _ = d.memory(d.parts[g.I][i])
		}
		g.Parts, g.Util = parts, wire.Unknown // the driver measures no utilization under MIG
		return
	}
	code := d.call("nvmlDeviceGetUtilizationRates", func() nvml.Return {
		u, ret := dev.GetUtilizationRates()
		g.Util = wire.Unknown
		if ret == nvml.SUCCESS {
			g.Util = int(min(u.Gpu, 100)) // stale samples have shown more
		}
		return ret
	})
	if g.Code == success && code != notSupported && code != functionNotFound {
		g.Code = code
	}
}

// memory prefers the call that does not count what the driver reserves as used.
func (d *driver) memory(dev nvml.Device) (used, total int64, code int) {
	used, total = wire.Unknown, wire.Unknown
	code = d.call("nvmlDeviceGetMemoryInfo_v2", func() nvml.Return {
		m, ret := dev.GetMemoryInfo_v2()
		if ret == nvml.SUCCESS {
			used, total = int64(m.Used), int64(m.Total)
		}
		return ret
	})
	if code == notSupported || code == functionNotFound || code == int(nvml.ERROR_ARGUMENT_VERSION_MISMATCH) {
		code = d.call("nvmlDeviceGetMemoryInfo", func() nvml.Return {
			m, ret := dev.GetMemoryInfo()
			if ret == nvml.SUCCESS {
				used, total = int64(m.Used), int64(m.Total)
			}
			return ret
		})
	}
	if code == notSupported || code == functionNotFound {
		code = success
	}
	return used, total, code
}

func (d *driver) slow(g *wire.GPU) {
	dev := d.devices[g.I]
	d.partition(g)
	g.Milliwatts, g.Celsius, g.Clocks = wire.Unknown, wire.Unknown, 0
	d.call("nvmlDeviceGetPowerUsage", func() nvml.Return {
		mw, ret := dev.GetPowerUsage()
		if ret == nvml.SUCCESS {
			g.Milliwatts = int(mw)
		}
		return ret
	})
	code := d.call("nvmlDeviceGetTemperatureV", func() nvml.Return {
		t, ret := dev.GetTemperatureV().V1()
		if ret == nvml.SUCCESS {
			g.Celsius = int(t.Temperature)
		}
		return ret
	})
	if code != success {
		d.call("nvmlDeviceGetTemperature", func() nvml.Return {
			t, ret := dev.GetTemperature(nvml.TEMPERATURE_GPU)
			if ret == nvml.SUCCESS {
				g.Celsius = int(t)
			}
			return ret
		})
	}
	clocks, read := "nvmlDeviceGetCurrentClocksEventReasons", dev.GetCurrentClocksEventReasons
	if !d.has[clocks] { // before driver 535
		clocks, read = "nvmlDeviceGetCurrentClocksThrottleReasons", dev.GetCurrentClocksThrottleReasons
	}
	d.call(clocks, func() (ret nvml.Return) {
		g.Clocks, ret = read()
		return ret
	})
	g.Corrected, g.Uncorrected = d.ecc(dev, nvml.MEMORY_ERROR_TYPE_CORRECTED), d.ecc(dev, nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	g.RowsRemapped, g.RowsPending, g.RowsExhausted = wire.Unknown, false, false
	d.call("nvmlDeviceGetRemappedRows", func() nvml.Return {
		_, rows, pending, failed, ret := dev.GetRemappedRows()
		if ret == nvml.SUCCESS {
			g.RowsRemapped, g.RowsPending, g.RowsExhausted = rows, pending, failed
		}
		return ret
	})
}

func (d *driver) ecc(dev nvml.Device, kind nvml.MemoryErrorType) int64 {
	n := int64(wire.Unknown)
	d.call("nvmlDeviceGetTotalEccErrors", func() nvml.Return {
		count, ret := dev.GetTotalEccErrors(kind, nvml.VOLATILE_ECC)
		if ret == nvml.SUCCESS {
			n = int64(count)
		}
		return ret
	})
	return n
}

// listen asks for the XIDs of every GPU and for drivers that leave one.
func (d *driver) listen(gpus []wire.GPU) {
	code := d.call("nvmlEventSetCreate", func() (ret nvml.Return) {
		d.xids, ret = d.nvml.EventSetCreate()
		return ret
	})
	if code != success {
		d.xids = nil
	}
	for i := range gpus {
		if d.xids != nil && gpus[i].Code == success {
			d.call("nvmlDeviceRegisterEvents", func() nvml.Return {
				return d.devices[gpus[i].I].RegisterEvents(nvml.EventTypeXidCriticalError, d.xids)
			})
		}
	}
	create := &nvml.SystemEventSetCreateRequest{Version: nvml.STRUCT_VERSION(nvml.SystemEventSetCreateRequest{}, 1)}
	if d.call("nvmlSystemEventSetCreate", func() nvml.Return { return d.nvml.SystemEventSetCreate(create) }) != success {
		return
	}
	register := &nvml.SystemRegisterEventRequest{
		Version:    nvml.STRUCT_VERSION(nvml.SystemRegisterEventRequest{}, 1),
		EventTypes: nvml.SystemEventTypeGpuDriverUnbind, Set: create.Set,
	}
	if d.call("nvmlSystemRegisterEvents", func() nvml.Return { return d.nvml.SystemRegisterEvents(register) }) == success {
		d.drivers = create
		d.pin.Pin(&d.data[0])
	}
}

func (d *driver) events() (xids []wire.XID, unbind bool) {
	for d.xids != nil && len(xids) < wire.MaxXIDs {
		var e nvml.EventData
		code := d.call("nvmlEventSetWait_v2", func() (ret nvml.Return) {
			e, ret = d.xids.Wait(0)
			return ret
		})
		if code != success { // NVML's timeout: there are no more
			break
		}
		for i, dev := range d.devices {
			if e.EventType == nvml.EventTypeXidCriticalError && dev == e.Device {
				xids = append(xids, wire.XID{I: i, Code: e.EventData, Instance: int(int32(e.GpuInstanceId))}) // no instance is all ones
			}
		}
	}
	if d.drivers == nil {
		return xids, false
	}
	wait := &nvml.SystemEventSetWaitRequest{
		Version: nvml.STRUCT_VERSION(nvml.SystemEventSetWaitRequest{}, 1),
		Set:     d.drivers.Set, Data: &d.data[0], DataSize: uint32(len(d.data)),
	}
	if d.call("nvmlSystemEventSetWait", func() nvml.Return { return d.nvml.SystemEventSetWait(wait) }) != success {
		return xids, false
	}
	for i := range min(int(wait.NumEvent), len(d.data)/int(unsafe.Sizeof(d.data[0]))) {
		unbind = unbind || d.data[i].EventType&nvml.SystemEventTypeGpuDriverUnbind != 0
	}
	return xids, unbind
}

// shutdown releases the devices.
func (d *driver) shutdown() {
	d.call("nvmlShutdown", d.nvml.Shutdown)
}
