package gateway

import (
	"fmt"
	"net/http"
	"time"
)

// Config is what an operator can choose. All limits apply per request unless said
// otherwise.
type Config struct {
	Listen  string // the address clients use; only for the log
	MaxBody int64  // bytes of a request body; above it: 413
	MaxOpen int    // requests open at once; each holds its body, so MaxOpen x MaxBody bounds memory

	Deadline    time.Duration // start deadline where the client names none
	MaxDeadline time.Duration // longest start deadline a client may name, at most 10 min
	SLOTTFT     time.Duration // limit for the first token where the client names none
	SLOTPOT     time.Duration // limit for the mean time per token where the client names none

	HoldHeaders  time.Duration // how long a stream's status waits for the first event, under proxies' 50-60 s idle limits
	PingEvery    time.Duration // silence on an open stream before ": ping"; 0 = never
	SilenceLimit time.Duration // silence of a started request before it counts as lost
	ClientBuffer int           // bytes waiting for a slow client before it is cut off
	WriteLimit   time.Duration // longest a single write to a client may take
	Grace        time.Duration // how long a drain waits for open requests

	// RefuseLaw is by what the door refuses: LawRate, by the predicted start of each
	// request, or LawWatermark, by the engines' gauges alone.
	RefuseLaw string

	SaturatedStatus int // 429 or 503, for "all engines are busy"
}

// The values of Config.RefuseLaw.
const (
	LawRate      = "rate"
	LawWatermark = "watermark" // its numbers: fleet.Level
)

// DefaultConfig has the values of the design; authentication is off.
func DefaultConfig() Config {
	return Config{
		Listen:          "127.0.0.1:4780",
		MaxBody:         32 << 20,
		MaxOpen:         16384,
		Deadline:        30 * time.Second,
		MaxDeadline:     600 * time.Second,
		SLOTTFT:         2 * time.Second,
		SLOTPOT:         100 * time.Millisecond,
		HoldHeaders:     45 * time.Second,
		PingEvery:       15 * time.Second,
		SilenceLimit:    120 * time.Second,
		ClientBuffer:    1 << 20,
		WriteLimit:      30 * time.Second,
		Grace:           30 * time.Second,
		RefuseLaw:       LawRate,
		SaturatedStatus: http.StatusTooManyRequests,
	}
}

// Validate names the first field that cannot work, its value and the fix.
func (c *Config) Validate() error {
	durations := []struct {
		name      string
		value     time.Duration
		low, high time.Duration
	}{
		{"max_deadline", c.MaxDeadline, time.Second, 600 * time.Second},
		{"deadline", c.Deadline, time.Millisecond, c.MaxDeadline},
		{"slo_ttft", c.SLOTTFT, time.Millisecond, 600 * time.Second},
		{"slo_tpot", c.SLOTPOT, time.Millisecond, time.Minute},
		{"hold_headers", c.HoldHeaders, time.Millisecond, time.Hour},
		{"ping_every", c.PingEvery, 0, time.Hour},
		{"silence_limit", c.SilenceLimit, time.Second, time.Hour},
		{"write_limit", c.WriteLimit, time.Second, time.Hour},
		{"grace", c.Grace, 0, time.Hour},
	}
	for _, d := range durations {
		if d.value < d.low || d.value > d.high {
			return fmt.Errorf("gateway: %s is %s: set it to %s..%s", d.name, d.value, d.low, d.high)
		}
	}
	if c.MaxBody < 1 || c.MaxBody > 1<<30 {
		return fmt.Errorf("gateway: max_body is %d: set it to 1..%d bytes", c.MaxBody, 1<<30)
	}
	if c.MaxOpen < 1 {
		return fmt.Errorf("gateway: max_open is %d: set it to 1 or more requests", c.MaxOpen)
	}
	if c.ClientBuffer < 4096 {
		return fmt.Errorf("gateway: client_buffer is %d: set it to 4096 bytes or more", c.ClientBuffer)
	}
	if c.RefuseLaw != LawRate && c.RefuseLaw != LawWatermark {
		return fmt.Errorf("gateway: refuse.law is %q: set it to %s or %s", c.RefuseLaw, LawRate, LawWatermark)
	}
	if c.SaturatedStatus != http.StatusTooManyRequests && c.SaturatedStatus != http.StatusServiceUnavailable {
		return fmt.Errorf("gateway: refuse.saturated is %d: set it to 429 or 503", c.SaturatedStatus)
	}
	return nil
}
