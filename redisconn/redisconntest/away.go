// Package redisconntest has a Redis that is away, for tests of how often it is tried.
package redisconntest

import (
	"net"
	"sync/atomic"
	"testing"
)

// Away ends each connection as it comes, until the test ends, and counts them.
func Away(t testing.TB) (addr string, tried *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tried = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tried.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String(), tried
}
