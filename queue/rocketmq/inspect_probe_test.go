//go:build e2e

package rocketmq

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	for _, tg := range [][2]string{{"penstock", "penstock-agents"}, {"penstock", "doc-unordered"}, {"penstock", "doc-nobind"}, {"doc-other", "penstock-agents"}, {"penstock", "doc-wild"}, {"penstock", "doc-none"}, {"doc-none", "penstock-agents"}, {"doc-normal", "penstock-agents"}, {"penstock", "doc-plain"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		cfg := DefaultConfig()
		cfg.Endpoint = "127.0.0.1:18081"
		cfg.Topic, cfg.Group = tg[0], tg[1]
		from := time.Now()
		r, err := Inspect(ctx, cfg)
		fmt.Printf("%v\n   %+v %v %v\n", tg, r, err, time.Since(from))
		cancel()
	}
}
