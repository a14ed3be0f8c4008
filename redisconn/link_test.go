package redisconn

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"penstock/redisconn/redisconntest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted is a client of l, and how often it has dialed.
func counted(t *testing.T, l *Link, s Server) (*Client, *atomic.Int64) {
	t.Helper()
	o, err := s.Options()
	if err != nil {
		t.Fatal(err)
	}
	o.PoolSize, o.MinIdleConns, o.MaxRetries, o.PipelinePoolSize = 4, 1, 1, -1
	dial, dials := goredis.NewDialer(o), new(atomic.Int64)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return dial(ctx, network, addr)
	}
	client := l.Client(o)
	t.Cleanup(func() { _ = client.Close() })
	return client, dials
}

// TestAway: two clients ask as fast as they can, by calls, pipelines and
// subscriptions; together they dial once per Every, and each is told the reason.
func TestAway(t *testing.T) {
	locked := miniredis.RunT(t)
	locked.RequireAuth("right")
	down, _ := redisconntest.Away(t)
	const every = 50 * time.Millisecond
	for name, tc := range map[string]struct {
		at   Server
		said string
	}{
		"refuses":        {Server{Addr: "127.0.0.1:1"}, "dial tcp 127.0.0.1:1: connect: connection refused"},
		"hangs up":       {Server{Addr: down}, ""},
		"denies":         {Server{Addr: locked.Addr(), Password: "wrong"}, "WRONGPASS"},
		"refuses TLS":    {Server{Addr: "rediss://127.0.0.1:1"}, "connection refused"},
		"has no such ID": {Server{Addr: "redis://nobody:x@" + locked.Addr()}, "WRONGPASS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &Link{Every: every}
			began := time.Now()
			a, dialsA := counted(t, l, tc.at)
			b, dialsB := counted(t, l, tc.at)
			asked := 0
			for ; time.Since(began) < 8*every; asked++ {
				sub := b.Subscribe(t.Context(), "c")
				_, err1 := sub.ReceiveTimeout(t.Context(), time.Second)
				_ = sub.Close()
				_, err2 := a.Pipelined(t.Context(), func(p goredis.Pipeliner) error { p.Ping(t.Context()); return nil })
				for _, err := range []error{a.Ping(t.Context()).Err(), err1, err2} {
					if err == nil || !strings.Contains(err.Error(), tc.said) {
						t.Fatalf("ask %d: %v, want an error with %q", asked, err, tc.said)
					}
				}
			}
			if !l.Away() {
				t.Error("Away is false")
			}
			// Until the first try has failed each of them may begin some.
			most := int64(time.Since(began)/every) + 4
			if n := dialsA.Load() + dialsB.Load(); n < 4 || n > most || int64(asked) < n {
				t.Errorf("%d dials in %v for %d rounds, want 4 to %d for more rounds", n, time.Since(began), asked, most)
			}
		})
	}
}

// TestAwayOnce: go-redis sleeps no backoff over an error that one was told.
func TestAwayOnce(t *testing.T) {
	o, err := Server{Addr: "127.0.0.1:1"}.Options()
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 3, time.Hour, time.Hour
	client := new(Link).Client(o)
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 { // tried, and told
		if err := client.Ping(ctx).Err(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("%v, want a refused connection", err)
		}
	}
}

// TestBack: once a connection is taken all go on, and nobody is told an old error.
func TestBack(t *testing.T) {
	m := miniredis.RunT(t)
	l := &Link{Every: 50 * time.Millisecond}
	a, _ := counted(t, l, Server{Addr: m.Addr()})
	b, _ := counted(t, l, Server{Addr: m.Addr()})
	ask := func() error { return errors.Join(a.Ping(t.Context()).Err(), b.Ping(t.Context()).Err()) }
	for round := range 3 {
		if err := ask(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		m.Close()
		for range 10 {
			if ask() == nil {
				t.Fatal("answered by nobody")
			}
		}
		if err := m.Restart(); err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		for ask() != nil {
			if time.Since(back) > 5*time.Second {
				t.Fatal("not back within 5 s")
			}
			time.Sleep(time.Millisecond)
		}
		if l.Away() {
			t.Error("Away is true")
		}
		for range 10 {
			if err := ask(); err != nil {
				t.Errorf("when it is back: %v", err)
			}
		}
	}
}

// TestNotAway: a Redis that is slow or asks for a user that nobody named is there, and
// a caller that left says nothing.
func TestNotAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	locked := miniredis.RunT(t)
	locked.RequireAuth("right")
	for name, addr := range map[string]string{"silent": silent.Addr().String(), "locked": locked.Addr()} {
		t.Run(name, func(t *testing.T) {
			var l Link
			client, _ := counted(t, &l, Server{Addr: addr})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			if err := client.Ping(ctx).Err(); err == nil || l.Away() {
				t.Errorf("%v, away %t; want an error and false", err, l.Away())
			}
		})
	}
}

// TestCloseEndsDials: nothing of a client outlives Close, not even a handshake with a
// port that says nothing; TestMain sees what does.
func TestCloseEndsDials(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	o, err := Server{Addr: "rediss://" + silent.Addr().String()}.Options()
	if err != nil {
		t.Fatal(err)
	}
	o.DialTimeout = time.Hour
	var l Link
	client := l.Client(o)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := client.Ping(ctx).Err(); err == nil {
		t.Error("a port that says nothing has answered")
	}
	if err := client.Close(); err != nil || l.Away() {
		t.Errorf("Close: %v, away %t; want neither", err, l.Away())
	}
}

func TestRefuses(t *testing.T) {
	var l Link
	at := time.Unix(1, 0)
	why := errors.New("why")
	for _, step := range []struct {
		after time.Duration
		want  error
		tried error // how the try ends, where there is one
	}{
		{0, nil, nil},
		{0, nil, nil},
		{0, nil, why},
		{Every - 1, why, nil},
		{Every, nil, why},
		{Every, why, nil},
		{2*Every - 1, why, nil},
		{5 * Every, nil, why},
		{6*Every - 1, why, nil},
		{6 * Every, nil, nil},
		{6 * Every, nil, nil},
	} {
		got := l.refuses(at.Add(step.after))
		if got != step.want { //nolint:errorlint // the very one
			t.Errorf("after %v: %v, want %v", step.after, got, step.want)
		}
		if got == nil {
			l.tried(step.tried)
		}
	}
}
