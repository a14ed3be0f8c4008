package redis

import (
	"context"
	"errors"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/redisconn"
)

// dial makes a client of at most conns connections. It repeats nothing by itself:
// whoever calls knows what may be repeated.
func (c *Config) dial(link *redisconn.Link, conns int) *redisconn.Client {
	o, _ := c.server().Options() // Validate has made them
	o.PoolSize, o.PipelinePoolSize, o.PoolTimeout = conns, -1, c.Timeout
	o.ReadBufferSize, o.WriteBufferSize = 64<<10, 64<<10
	o.MaxRetries, o.DialTimeout = -1, c.Timeout
	o.ReadTimeout, o.WriteTimeout = -1, -1 // every call's context has a deadline
	o.ConnMaxIdleTime = -1
	return link.Client(o)
}

func (c *Config) server() redisconn.Server {
	return redisconn.Server{Addr: c.Addr, Username: c.Username, Password: c.Password, DB: c.DB, TLS: c.TLS}
}

// pause waits between attempts and returns the next pause; false when ctx ended.
func pause(ctx context.Context, link *redisconn.Link, d time.Duration) (next time.Duration, more bool) {
	most := retryMost
	if link.Away() {
		most = askEvery
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return min(2*d, most), true
	case <-ctx.Done():
		return d, false
	}
}

// refused reports whether err is an answer of Redis that says prefix.
func refused(err error, prefix string) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && strings.HasPrefix(answer.Error(), prefix)
}
