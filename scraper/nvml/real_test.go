//go:build e2e

package nvml

import (
	"os"
	"testing"
	"time"

	"penstock/reason"
)

// TestRealDriver is scripts/gpu-check.sh's: the reader on a machine with a GPU, for 20 s.
func TestRealDriver(t *testing.T) {
	cfg := DefaultConfig()
	if cfg.Path = os.Getenv("E2E_NVML"); cfg.Path == "" {
		t.Fatal("E2E_NVML is not set; run scripts/gpu-check.sh")
	}
	r, h, _ := newReader(t, cfg)
	var c *child
	exec := r.start
	r.start = func() (_ *child, err error) { c, err = exec(); return c, err }
	stop := run(t, r)
	reads := func(s Sample) bool {
		return s.State.reads() && len(s.GPUs) > 0 && !s.GPUs[0].SlowAt.IsZero()
	}
	_, first := h.await(t, 0, "of a GPU", reads)
	<-time.After(20 * time.Second)
	h.mu.Lock()
	last, n := h.all[len(h.all)-1], len(h.all)-first
	h.mu.Unlock()
	t.Logf("driver %s, %d readings in 20 s, resident %d MiB", last.Driver, n, c.rss()>>20)
	for _, g := range last.GPUs {
		t.Logf("%+v", g)
		if g.MemoryTotal <= 0 || g.MemoryUsed < 0 || g.PowerWatts == 0 || time.Since(g.At) > time.Second || time.Since(g.SlowAt) > 2*time.Second {
			t.Errorf("GPU %d: values missing or old", g.Index)
		}
	}
	if last.Reason != reason.OK || n < 70 {
		t.Errorf("reason %v, %d readings in 20 s; want ok, 80 or more", last.Reason, n)
	}
	c.kill()
	h.await(t, first+n, "of the next helper", reads)
	stop()
}
