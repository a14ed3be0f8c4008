package gateway

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/reason"
	"penstock/response"
)

func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		if problems, err := testutil.GatherAndLint(s.metrics); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		for _, play := range []func(n *node){
			func(n *node) { n.first(chunk1); n.send(response.Chunk, doneEvent); n.done("") },
			func(n *node) { n.finish(response.Event{Kind: response.Failed, Reason: reason.TriesUsed}) },
		} {
			_, _, finished := s.ask(streamBody)
			play(s.start())
			<-finished
		}
		_, _, finished := s.ask(`{"model":"made up"}`)
		<-finished
		for _, c := range []struct {
			name   string
			labels []string
			want   float64
		}{
			{"penstock_requests_total", []string{"tier", "default", "model", "q", "outcome", "ok"}, 1},
			{"penstock_requests_total", []string{"tier", "default", "model", "q", "outcome", "failed"}, 1},
			{"penstock_requests_total", []string{"tier", "default", "model", "other", "outcome", "rejected"}, 1},
			{"penstock_refusals_total", []string{"status", "503", "reason", "tries_used"}, 1},
			{"penstock_refusals_total", []string{"status", "404", "reason", "model_not_found"}, 1},
			{"penstock_queue_seconds", nil, 1},
			{"penstock_ttft_seconds", nil, 1},
			{"penstock_tpot_seconds", nil, 1},
			{"penstock_service_seconds", []string{"model", "q"}, 1},
			{"penstock_open_requests", nil, 0},
		} {
			if got := counter(t, s, c.name, c.labels...); got != c.want {
				t.Errorf("%s%v = %v, want %v", c.name, c.labels, got, c.want)
			}
		}
		before := testutil.CollectAndCount(s.g.metrics.requests)
		for i := range 3 * maxModels {
			s.g.metrics.model(newID()[:i%32+1], "default")
			s.g.metrics.model(newID(), "default")
		}
		if got := testutil.CollectAndCount(s.g.metrics.requests); got > before+maxModels*6 {
			t.Errorf("%d series, want the model label bounded", got)
		}
	})
}
