package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Every is the least time between two connections that are tried while Redis is away.
const Every = time.Second

// Link is the way to one Redis for several clients: what one finds out spares the others
// the try. Away is a Redis that cannot be dialed, hangs up before its first answer or
// refuses the user. Until it takes a connection one is tried per Every; what else needs
// one fails at once, with the error of the last try, so that who waits for Redis may ask
// often. Open connections are not touched.
//
// A Redis that takes connections and is silent is not away: that a greeting times out
// may say as much about this host. The zero Link is ready for use, by any goroutine.
type Link struct {
	Every time.Duration // 0 = the constant

	mu    sync.Mutex // guards what follows
	why   error      // of the last try; nil = it was taken
	again time.Time  // when the next may be tried
}

// Client is go-redis's, whose Close also ends what is being dialed.
type Client struct {
	*goredis.Client
	end context.CancelFunc
}

// Close closes all connections.
func (c *Client) Close() error {
	c.end()
	return c.Client.Close()
}

// Client makes a client of o, which may come with a Dialer; it dials nothing unless
// MinIdleConns says so. go-redis is told of no failed dial: its pool would try, once a
// second, in a goroutine that outlives the client. It gets a connection that fails at
// its first use. Nor does it write to stderr.
func (l *Link) Client(o *goredis.Options) *Client {
	silence()
	dial := o.Dialer
	if dial == nil {
		dial = dialer(o)
	}
	open, end := context.WithCancel(context.Background())
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		err := l.refuses(time.Now())
		if err == nil {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(open, cancel)()
			var conn net.Conn
			if conn, err = dial(ctx, network, addr); err == nil {
				return conn, nil
			}
			if !errors.Is(ctx.Err(), context.Canceled) {
				l.tried(err)
			}
		}
		return unreachable{told{err}}, nil
	}
	client := &Client{goredis.NewClient(o), end}
	client.AddHook(greeting{l})
	return client
}

// dialer is go-redis's, but that a TLS handshake ends with ctx too.
func dialer(o *goredis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if o.TLSConfig == nil {
		return goredis.NewDialer(o)
	}
	plain := &net.Dialer{Timeout: o.DialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return (&tls.Dialer{NetDialer: plain, Config: o.TLSConfig}).DialContext
}

// Away says whether the last try failed.
func (l *Link) Away() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why != nil
}

// refuses is why a connection may not be tried now; nil: it may, and the next one later.
func (l *Link) refuses(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil && now.Before(l.again) {
		return l.why
	}
	l.again = now.Add(cmp.Or(l.Every, Every))
	return nil
}

// tried notes how a try has ended.
func (l *Link) tried(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = err
}

// greeting notes what the first commands of each connection are answered, HELLO and AUTH.
type greeting struct{ l *Link }

func (g greeting) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if name := cmd.Name(); name == "hello" || name == "auth" {
			g.heard(name, err)
		}
		return err
	}
}

func (g greeting) heard(name string, err error) {
	var answer goredis.Error
	var timeout net.Error
	switch {
	case errors.As(err, new(told)): // nothing new
	case err == nil, name == "hello" && errors.As(err, &answer): // AUTH follows, or the command
		g.l.tried(nil)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
	default:
		g.l.tried(err)
	}
}

func (greeting) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (greeting) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// told is the error of a try that go-redis is given in place of a connection, as often
// as it is asked for one. Its text is the error's own; what kind it is stays hidden, or
// go-redis would sleep and ask again for every call.
type told struct{ error }

// unreachable is the connection of a try that failed. A pool drops one that it has kept
// idle, for SyscallConn fails too.
type unreachable struct{ err error }

func (u unreachable) Read([]byte) (int, error)              { return 0, u.err }
func (u unreachable) Write([]byte) (int, error)             { return 0, u.err }
func (u unreachable) SyscallConn() (syscall.RawConn, error) { return nil, u.err }
func (unreachable) Close() error                            { return nil }
func (unreachable) LocalAddr() net.Addr                     { return &net.TCPAddr{} }
func (unreachable) RemoteAddr() net.Addr                    { return &net.TCPAddr{} }
func (unreachable) SetDeadline(time.Time) error             { return nil }
func (unreachable) SetReadDeadline(time.Time) error         { return nil }
func (unreachable) SetWriteDeadline(time.Time) error        { return nil }

var silence = sync.OnceFunc(func() { goredis.SetLogger(quiet{}) })

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
