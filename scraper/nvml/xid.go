package nvml

// Class says what an XID, an error report of NVIDIA's driver, means for serving.
type Class uint8

// The classes. Only Fatal closes the gate.
const (
	Application Class = iota + 1 // a program did something wrong and was stopped; the GPU is well
	Fatal                        // memory, link, bus or firmware: what runs there is lost or wrong
	Other                        // noted by the driver, or not known here
	classEnd
)

var classes = [classEnd]string{"unknown", "application", "fatal", "other"}

// String is the metric label and the log attribute.
func (c Class) String() string {
	if c >= classEnd {
		c = 0
	}
	return classes[c]
}

type xid struct {
	class Class
	text  string
}

// xids is the table. Meanings and actions: NVIDIA's Xid catalog,
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Application
// is what NVIDIA answers with "restart the application" and its Kubernetes device
// plugin ignores too; Fatal needs a reset, or ends whatever used the GPU. 63 is
// Other: a row is replaced at the next reset and, says nvml.h on pending remappings,
// work goes on unharmed; the error that led to it comes as 48, 94 or 95. What is not
// listed is Other: a new driver's new code must not close a gate.
var xids = map[uint64]xid{
	8:   {Application, "stopped processing: time limit"},
	13:  {Application, "exception in a kernel"},
	31:  {Application, "memory page fault"},
	43:  {Application, "a channel was stopped"},
	45:  {Application, "cleaned up after a program's end"},
	68:  {Application, "video decoder exception"},
	69:  {Application, "exception in a kernel's class"},
	109: {Application, "context switch timeout"},

	48:  {Fatal, "uncorrectable memory error"},
	64:  {Fatal, "a broken memory row could not be replaced"},
	74:  {Fatal, "NVLink error"},
	79:  {Fatal, "fallen off the bus"},
	94:  {Fatal, "uncorrectable memory error, contained"},
	95:  {Fatal, "uncorrectable memory error, not contained"},
	119: {Fatal, "GSP firmware does not answer"},
	120: {Fatal, "GSP firmware error"},

	63: {Other, "a broken memory row will be replaced at the next reset"},
	92: {Other, "many correctable memory errors"},
}

func lookup(code uint64) xid {
	if x, ok := xids[code]; ok {
		return x
	}
	return xid{Other, "not in the table"}
}
