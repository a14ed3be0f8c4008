package registry

import "time"

// Record is what a person is shown of a request. Of one that is not known State is
// Unknown and the rest empty.
type Record struct {
	State            State
	Tier, Model      string
	Owner, Attempt   string // who runs it, or ran it last
	Tries            int    // starts so far
	Canceled         bool
	Opened, Deadline time.Time
}

// String is the state's name.
func (s State) String() string {
	names := [...]string{Unknown: "unknown", Queued: "queued", Running: "running", Streaming: "streaming", Finished: "finished"}
	if int(s) < len(names) {
		return names[s]
	}
	return names[Unknown]
}
