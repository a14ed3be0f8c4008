package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/queue/queuetest"
)

func TestConformance(t *testing.T) {
	cfg := DefaultConfig()
	cfg.LaneRequests, cfg.Concurrency = 100, 4
	queuetest.Run(t, queuetest.Spec{
		In: synctest.Test,
		Open: func(t *testing.T) queuetest.Harness {
			q, err := New(cfg)
			if err != nil {
				t.Fatalf("New: %v", err)
			}
			return queuetest.Harness{
				Publish:  q.Publish,
				Consumer: func(node string) queuetest.Consumer { return q.Consumer(node) },
				Close:    q.Close,
			}
		},
		LaneRequests: cfg.LaneRequests, Concurrency: cfg.Concurrency, StartedFrees: true,
		Lag: time.Millisecond, Quiet: 30 * time.Second,
	})
}
