package agent

import (
	"testing"
	"time"

	"penstock/reason"
	"penstock/scraper/nvml"
)

// TestGPUFaults: an engine whose GPU is gone takes nothing, though its page looks
// well, and takes work again once the GPU is back.
func TestGPUFaults(t *testing.T) {
	for _, why := range []reason.Reason{reason.GPULost, reason.GPUFault} {
		onStage(t, why.String(), func(t *testing.T, n *node) {
			n.agent.observeGPU(nvml.Sample{At: time.Now(), State: nvml.Lost, Reason: why, Detail: "GPU 0: XID 79"})
			n.until("not ready", func() bool { return !n.agent.Health().Ready })
			time.Sleep(3 * time.Second)
			if h := n.agent.Health(); h.Why(time.Now()) != why.String()+" 3 s: GPU 0: XID 79" {
				t.Errorf("why: got %q", h.Why(time.Now()))
			}
			s := n.agent.State(time.Now())
			if s.Taking || s.Gate != why.String() || n.agent.Row(time.Now()).Freeness != 0 || n.directory().State != why {
				t.Errorf("taking %v, gate %s, directory %v; want a shut gate for %v and no lanes", s.Taking, s.Gate, n.directory().State, why)
			}
			m := n.message(4)
			req := n.agent.request(time.Now(), m)
			if v := n.agent.answer(t.Context(), m, &req); v.Reason != why || v.After != gpuPause {
				t.Errorf("a head: got %+v; want suspended for %v", v, why)
			}
			n.agent.observeGPU(nvml.Sample{At: time.Now(), State: nvml.OK, Reason: reason.OK})
			n.until("ready", func() bool { return n.agent.Health().Ready })
			n.serves(m)
		})
	}
}
