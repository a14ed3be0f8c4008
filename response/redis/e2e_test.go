//go:build e2e

package redis

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"testing"
)

// server is a real redis-server, E2E_REDIS=host:port; each test has a prefix of its own.
func server(t testing.TB) Config {
	t.Helper()
	addr := os.Getenv("E2E_REDIS")
	if addr == "" {
		t.Fatal("E2E_REDIS is not set: give host:port of a redis-server that may be emptied")
	}
	var b [4]byte
	rand.Read(b[:])
	return quick(addr, "test-"+hex.EncodeToString(b[:]))
}

func TestConformanceRedis(t *testing.T) {
	conform(t, func(t *testing.T) Config { return server(t) })
}
