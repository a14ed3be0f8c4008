package redis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// dial makes a client of at most conns connections. It repeats nothing by itself:
// whoever calls knows what may be repeated.
func (c *Config) dial(conns int) *goredis.Client {
	silence()
	o := &goredis.Options{
		Addr: c.Addr, Username: c.Username, Password: c.Password, DB: c.DB, TLSConfig: c.TLS,
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		PoolSize:                 conns, PipelinePoolSize: -1, PoolTimeout: c.Timeout,
		ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10,
		MaxRetries: -1, DialerRetries: 1, DialTimeout: c.Timeout,
		ContextTimeoutEnabled: true, ReadTimeout: -1, WriteTimeout: -1, // every call's context has a deadline
		ConnMaxIdleTime: -1,
	}
	connect := goredis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, network, addr)
		if err != nil {
			return unreachable{err}, nil
		}
		return conn, nil
	}
	return goredis.NewClient(o)
}

// unreachable is the connection of a dial that failed. go-redis is not told of the
// failure itself: after PoolSize of those it would try only once a second, in a
// goroutine that outlives the client.
type unreachable struct{ err error }

func (u unreachable) Read([]byte) (int, error)       { return 0, u.err }
func (u unreachable) Write([]byte) (int, error)      { return 0, u.err }
func (unreachable) Close() error                     { return nil }
func (unreachable) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (unreachable) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (unreachable) SetDeadline(time.Time) error      { return nil }
func (unreachable) SetReadDeadline(time.Time) error  { return nil }
func (unreachable) SetWriteDeadline(time.Time) error { return nil }

// silence keeps go-redis from writing to stderr: what fails is returned and logged here.
var silence = sync.OnceFunc(func() { goredis.SetLogger(quiet{}) })

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// pause waits between attempts and returns the next pause; false when ctx ended.
func pause(ctx context.Context, d time.Duration) (next time.Duration, more bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return min(2*d, retryMost), true
	case <-ctx.Done():
		return d, false
	}
}

// refused reports whether err is an answer of Redis that says prefix.
func refused(err error, prefix string) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && strings.HasPrefix(answer.Error(), prefix)
}
