//go:build e2e

package rocketmq

import (
	"os"
	"testing"
	"time"
)

// endpoint is the proxy of a real broker, started by scripts/e2e.
func endpoint(t testing.TB) string {
	e := os.Getenv("E2E_ROCKETMQ")
	if e == "" {
		t.Fatal("E2E_ROCKETMQ is not set to the HOST:PORT of a RocketMQ proxy; run scripts/e2e")
	}
	return e
}

func TestRealConformance(t *testing.T) {
	e := endpoint(t)
	conformance(t, func(t *testing.T) *fleet { return newFleet(t, e, nil) }, 15*time.Second, 500*time.Millisecond)
}
