package redis

import (
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/lane"
	"penstock/reason"
	"penstock/redisconn"
	"penstock/registry"
)

// Config says where Redis is, how long it may take, and bounds the records. The
// bounds are kept in Redis, for all gateways together: give all the same. The funcs
// must be quick and safe for concurrent use.
type Config struct {
	Addr         string // host:port of the primary, or redis://… or rediss://… with user, password and database
	Username     string
	Password     string
	PasswordFile string // instead of Password; read for each connection, so that it can be changed
	CAFile       string // PEM; TLS with this authority. TLS with the system's: a rediss:// address
	Prefix       string // of all keys and channels

	Deadline    time.Duration // of one call; event bytes add to it at 8 MiB/s
	Connections int           // at most so many, beside one that listens
	ConfirmWait time.Duration // how long Open waits for an agent to subscribe to a lane none has; 0 = not at all

	LaneRequests int   // outstanding requests of one lane, queued and running
	LaneBytes    int64 // bodies of one lane's outstanding requests, 512 B added to each
	TotalBytes   int64 // the same over all lanes
	Width        int   // shards of a lane
	Mailbox      int64 // events a mailbox may hold that its gateway has not read: response/redis's MaxLen

	// Terminal encodes the event for a request that a call must end: UpstreamLost,
	// TriesUsed or Aborted. attempt is the last that ran.
	Terminal func(id, attempt string, why reason.Reason) []byte
	Rank     func(tier string) int            // 0 is served first; nil: all tiers are equal
	Bounds   func(k lane.Key) registry.Bounds // of a lane, for what comes; nil: all are the fields above
	Pace     func(k lane.Key) float64         // most starts per second of a lane, 0 = no limit; nil: none
	Live     func(reply string) string        // the key that exists while the gateway behind a reply address does, "" = not known; nil: always ""
	Cancel   func(owner, id, attempt string)  // a request was cancelled somewhere; owner and attempt "" when it was queued. May be nil; must not block
}

// DefaultConfig has the bounds of registry/memory, the shard width and the waits of
// the design. Addr and Terminal are left to set.
func DefaultConfig() Config {
	return Config{
		Prefix: "penstock:", Deadline: 50 * time.Millisecond, Connections: 8, ConfirmWait: 50 * time.Millisecond,
		LaneRequests: 10_000, LaneBytes: 256 << 20, TotalBytes: 1 << 30, Width: 32, Mailbox: 1 << 18,
	}
}

// Validate names the first field that cannot work.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Deadline", int64(c.Deadline)},
		{"Connections", int64(c.Connections)},
		{"ConfirmWait", int64(c.ConfirmWait) + 1},
		{"LaneRequests", int64(c.LaneRequests)},
		{"LaneBytes", c.LaneBytes},
		{"TotalBytes", c.TotalBytes},
		{"Width", int64(c.Width)},
		{"Mailbox", c.Mailbox},
	} {
		if f.value < 1 {
			return fmt.Errorf("registry/redis: %s is %d; set it to 1 or more", f.name, f.value)
		}
	}
	switch {
	case c.Addr == "":
		return errors.New("registry/redis: Addr is empty; set it to host:port or a redis:// address")
	case c.Prefix == "":
		return errors.New("registry/redis: Prefix is empty; set it to the fleet's, penstock: by default")
	case c.Width > lane.MaxWidth:
		return fmt.Errorf("registry/redis: Width is %d; set it to %d or less", c.Width, lane.MaxWidth)
	case c.Terminal == nil:
		return errors.New("registry/redis: Terminal is nil; set it to the encoder of terminal events")
	}
	_, err := c.options()
	return err
}

// options are go-redis's: a call repeats once, on a connection that has died, and
// otherwise fails at its deadline.
func (c *Config) options() (*goredis.Options, error) {
	o, err := redisconn.Server{Addr: c.Addr, Username: c.Username, Password: c.Password, PasswordFile: c.PasswordFile, CAFile: c.CAFile}.Options()
	if err != nil {
		return nil, fmt.Errorf("registry/redis: %w", err)
	}
	o.MaxRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = max(c.Deadline, time.Second), max(c.Deadline, time.Second), time.Second, c.Deadline
	o.PoolSize, o.MaxActiveConns, o.MinIdleConns, o.PipelinePoolSize = c.Connections, c.Connections, 1, -1
	return o, nil
}
