package gateway

import (
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/gateway/admission"
	"penstock/gateway/openai"
	"penstock/lane"
	"penstock/policy"
	"penstock/reason"
	"penstock/response"
)

func TestUsageIsLearned(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		long := `{"model":"q","messages":[{"role":"user","content":"` + strings.Repeat("x", 8000) + `"}]}`
		var tokens []int
		for range 30 {
			_, _, finished := s.ask(long)
			n := s.start()
			tokens = append(tokens, n.m.PromptTokens)
			n.finish(response.Event{Kind: response.Done, Status: 200, Payload: []byte("{}"), Usage: response.Usage{Prompt: 4000, Output: 1, Known: true}})
			<-finished
		}
		if first, last := tokens[0], tokens[len(tokens)-1]; first != 2000 || last < 3000 {
			t.Errorf("prompt of 8000 bytes quoted as %d, after 30 answers that said 4000: %d", first, last)
		}
	})
}

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
			{"penstock_queue_seconds", []string{"tier", "default"}, 1},
			{"penstock_ttft_seconds", []string{"tier", "default"}, 1},
			{"penstock_estimate_ratio", []string{"of", "prompt"}, 1},
			{"penstock_estimate_ratio", []string{"of", "output"}, 1},
			{"penstock_tpot_seconds", nil, 1},
			{"penstock_service_seconds", []string{"model", "q"}, 1},
			{"penstock_open_requests", nil, 0},
		} {
			if got := counter(t, s, c.name, c.labels...); got != c.want {
				t.Errorf("%s%v = %v, want %v", c.name, c.labels, got, c.want)
			}
		}
	})
}

var tenants = flag.Int("tenants", 2000, "how many tenants TestTenants lets come")

// TestTenants: however many tenants come, nothing of them stays but what is bounded.
func TestTenants(t *testing.T) {
	s := newStage(t, func(_ *Config, d *Deps) { d.Log = slog.New(slog.DiscardHandler) })
	r := openai.Request{Model: "q", TextBytes: 400, Sequences: 1}
	visit := func(i int) {
		name := fmt.Sprintf("tenant-%016x", uint64(i)*0x9e3779b97f4a7c15)
		x := &exchange{g: s.g, r: httptest.NewRequest(http.MethodPost, chatPath, nil), id: name, label: name, who: policy.Tenant{Name: name}, request: r, place: admission.Place{Known: true}, arrived: time.Now()}
		x.class.Lane = lane.Key{Tier: "default", Model: "q", Tenant: name}
		s.g.door.Quote(name, &r)
		x.finish(http.StatusOK, reason.Finished, response.Usage{Prompt: 100, Output: 7, Known: true})
		x.finish(http.StatusTooManyRequests, reason.RateLimited, response.Usage{})
	}
	series := func() (n int) {
		families, err := s.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	for i := range min(*tenants, 10_001) { // with many, what is bounded is full
		visit(-1 - i)
	}
	before, heapBefore := series(), heap()
	for i := range *tenants {
		visit(i)
	}
	grown := heap() - heapBefore
	t.Logf("%d tenants: %d series, %+d KiB on the heap", *tenants, series(), grown>>10)
	if got := series(); got != before {
		t.Errorf("%d series after %d tenants, %d before", got, *tenants, before)
	}
	if grown > 4<<20 { // the maps of what is bounded grow a little more
		t.Errorf("the heap grew by %d KiB over %d tenants, want 4 MiB at most", grown>>10, *tenants)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
