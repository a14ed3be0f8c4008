package memory

import (
	"errors"
	"fmt"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

// Config bounds the records and says what only the wiring knows. The funcs must
// be quick and safe for concurrent use; none is called with the lock held.
type Config struct {
	LaneRequests int   // outstanding requests of one lane, queued and running
	LaneBytes    int64 // bodies of one lane's outstanding requests, 512 B added to each
	TotalBytes   int64 // the same over all lanes
	Finished     int   // finished records remembered, the soonest to expire forgotten first

	// Terminal encodes the event for a request that a claim or a release must end:
	// UpstreamLost, TriesUsed or Aborted. attempt is the last that ran.
	Terminal func(id, attempt string, why reason.Reason) []byte
	Rank     func(tier string) int            // 0 is served first; nil: all tiers are equal
	Bounds   func(k lane.Key) registry.Bounds // of a lane, for what comes; nil: all are the fields above
	Pace     func(k lane.Key) float64         // most starts per second of a lane, 0 = no limit; nil: none
	Live     func(reply string) (ok bool)     // is the gateway behind a reply address there? nil: always
}

// DefaultConfig has the bounds for one host: a lane of 10,000 requests or 256 MiB,
// 1 GiB in all, 16,384 finished records (about 6 MiB). Terminal is left to set.
func DefaultConfig() Config {
	return Config{LaneRequests: 10_000, LaneBytes: 256 << 20, TotalBytes: 1 << 30, Finished: 16_384}
}

// Validate names the first field that cannot work.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"LaneRequests", int64(c.LaneRequests)},
		{"LaneBytes", c.LaneBytes},
		{"TotalBytes", c.TotalBytes},
		{"Finished", int64(c.Finished)},
	} {
		if f.value < 1 {
			return fmt.Errorf("registry/memory: %s is %d; set it to 1 or more", f.name, f.value)
		}
	}
	if c.Terminal == nil {
		return errors.New("registry/memory: Terminal is nil; set it to the encoder of terminal events")
	}
	return nil
}
