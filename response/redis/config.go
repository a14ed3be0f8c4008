// Package redis is the token stream of a fleet: agents append events to the Redis
// streams of the gateway that waits (Writer), the gateway reads them (Reader).
// DESIGN.md says what is kept over which fault.
package redis

import (
	"crypto/tls"
	"fmt"
	"strings"
	"time"
)

const (
	// batchEvents and batchBytes bound one pipeline; an event over batchBytes goes alone.
	batchEvents, batchBytes = 256, 1 << 20
	// readCount bounds the entries of one read; whole answers may be among them.
	readCount = 128
	// readBlock is how long a read waits on an idle stream; with Timeout it is how
	// long a dead connection goes unnoticed.
	readBlock = time.Second
	// trimAfter is how many events a stream may hold that were dispatched, beside the
	// regular trim every Renew.
	trimAfter = 4096
	// slowest is the rate in bytes/s that deadlines allow for.
	slowest = 8 << 20
	// retryFrom doubles up to retryMost between attempts after a failure.
	retryFrom, retryMost = 20 * time.Millisecond, 500 * time.Millisecond
	// askEvery is the most where redisconn.Link is asked, which tries less often.
	askEvery = 200 * time.Millisecond
)

// Config is what Reader and Writer need. Both sides of a fleet have the same Prefix.
type Config struct {
	Addr               string // host:port of the primary
	Username, Password string
	DB                 int
	TLS                *tls.Config   // nil = plain TCP
	Prefix             string        // of every key
	Timeout            time.Duration // for one answer, and 1 s more per 8 MiB of events
	Renew              time.Duration // how often liveness is renewed, and asked for by writers; streams are trimmed as often

	// Gateway side.
	Shards int           // streams of one mailbox, each read by a connection of its own; 1..8
	Alive  time.Duration // a gateway that could not renew for this long is gone
	Keep   time.Duration // a stream outlives its last renewal by this

	// Agent side.
	Connections int           // 1..8; one stream's events go over one
	MaxLen      int64         // entries a stream nobody reads may hold, about 350 B each for chunks
	Buffer      int           // bytes of events one attempt may have waiting
	BufferFor   time.Duration // how long an attempt's events may wait without one being accepted
	BufferAll   int           // bytes of events that may wait in all
	GoneAfter   time.Duration // a mailbox missing for this long is gone; above Renew, or an emptied Redis ends all
	Drain       time.Duration // how long Run goes on sending after its context ended
}

// DefaultConfig has a local Redis and the bounds of the design.
func DefaultConfig() Config {
	return Config{
		Addr: "127.0.0.1:6379", Prefix: "penstock", Timeout: time.Second,
		Shards: 2, Renew: time.Second, Alive: 10 * time.Second, Keep: time.Minute,
		Connections: 4, MaxLen: 1 << 18, Buffer: 1 << 20, BufferFor: 30 * time.Second, BufferAll: 256 << 20,
		GoneAfter: 5 * time.Second, Drain: 3 * time.Second,
	}
}

// Validate names the first field that cannot work and what would.
func (c *Config) Validate() error {
	bad := func(field string, value any, fix string) error {
		return fmt.Errorf("response/redis: %s is %v: %s", field, value, fix)
	}
	switch {
	case !strings.Contains(c.Addr, ":"):
		return bad("Addr", fmt.Sprintf("%q", c.Addr), "give host:port")
	case c.DB < 0:
		return bad("DB", c.DB, "0 or more")
	case c.Prefix == "":
		return bad("Prefix", `""`, "give the fleet's, such as penstock")
	case c.Timeout <= 0:
		return bad("Timeout", c.Timeout, "give more than 0, such as 1s")
	case c.Shards < 1 || c.Shards > 8:
		return bad("Shards", c.Shards, "give 1..8")
	case c.Renew < time.Millisecond:
		return bad("Renew", c.Renew, "give 1ms or more, such as 1s")
	case c.Alive < 3*c.Renew:
		return bad("Alive", c.Alive, "give at least 3 x Renew")
	case c.Keep < c.Alive:
		return bad("Keep", c.Keep, "give at least Alive")
	case c.Connections < 1 || c.Connections > 8:
		return bad("Connections", c.Connections, "give 1..8")
	case c.MaxLen < 1024:
		return bad("MaxLen", c.MaxLen, "give 1024 or more")
	case c.Buffer < 1<<10:
		return bad("Buffer", c.Buffer, "give 1 KiB or more")
	case c.BufferFor <= 0:
		return bad("BufferFor", c.BufferFor, "give more than 0, such as 30s")
	case c.BufferAll < c.Buffer:
		return bad("BufferAll", c.BufferAll, "give at least Buffer")
	case c.GoneAfter <= 0:
		return bad("GoneAfter", c.GoneAfter, "give more than Renew, such as 5s")
	case c.Drain < 0:
		return bad("Drain", c.Drain, "give 0 or more")
	}
	if _, err := c.server().Options(); err != nil {
		return fmt.Errorf("response/redis: %w", err)
	}
	return nil
}
