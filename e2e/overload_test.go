//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"testing"
	"time"

	"penstock/load"
)

// workload is the start of docs/benchmarks.md's: Azure conversation lengths at a
// quarter, four bytes for each token, 16 requests per second.
func workload(t *testing.T, rate float64, span time.Duration) []load.Arrival {
	t.Helper()
	file, err := os.Open("../sim/traces/azure_llm_2023_conv.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	shapes, err := load.ReadAzure(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range shapes {
		shapes[i].Prompt /= 4
		shapes[i].Output /= 4
	}
	return load.Poisson(shapes, rate, int(rate*span.Seconds()), 1)
}

func overload(t *testing.T, url string, change func(*load.Config)) load.Summary {
	t.Helper()
	cfg := load.Config{
		URL: url, Model: "tiny", Arrivals: workload(t, 16, 30*time.Second), BytesPerToken: 4,
		Patience: 10 * time.Second, SLO: load.DefaultSLO, Seed: 1,
	}
	change(&cfg)
	outcomes, err := load.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := load.Summarize(outcomes)
	t.Logf("%s: goodput %.2f req/s, %.0f tok/s, TTFT p50 %v p99 %v, by quartile %.2f, refused %v, returned %d admitted %d",
		url, s.Goodput, s.TokenGoodput, s.TTFTp50, s.TTFTp99, s.Quartiles, s.Refused, s.Returned, s.ReturnStarted)
	return s
}

// TestOverload: at about twice the engine's capacity penstock keeps the goodput
// that the bare engine loses, tells every refused client when to come back, and
// lets those in that come back exactly then.
func TestOverload(t *testing.T) {
	direct := overload(t, engine, func(*load.Config) {}) // who gave up does not come back to add to its load
	through := overload(t, start(t).url, func(cfg *load.Config) { cfg.Retries, cfg.ObeyRetry, cfg.Backoff = 1, true, time.Second })
	if through.Goodput < 3*direct.Goodput {
		t.Errorf("goodput %.2f req/s, want at least 3 x the bare engine's %.2f", through.Goodput, direct.Goodput)
	}
	if through.Untold > 0 {
		t.Errorf("%d refusals without Retry-After", through.Untold)
	}
	if admitted := float64(through.ReturnStarted) / float64(max(1, through.Returned)); through.Returned < 20 || admitted < 0.8 {
		t.Errorf("of %d clients that returned when told %.0f %% were admitted, want at least 80 %% of 20 or more", through.Returned, 100*admitted)
	}
}

// TestEngineHangs: the engine process stops under load while its API answers on.
// penstock says so within seconds, refuses with a reason and a time, and serves
// again when the engine goes on.
func TestEngineHangs(t *testing.T) {
	p := start(t)
	core := engineCore(t)
	signal(t, core, "STOP")
	stopped := true
	defer func() {
		if stopped {
			signal(t, core, "CONT")
		}
	}()
	body := `{"model":"tiny","prompt":"abcdefgh","max_tokens":100,"ignore_eos":true,"stream":true}`
	done := make(chan *answer, 1)
	go func() {
		a, err := post(t.Context(), p.url+"/v1/completions", body)
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	ready := func(want int) func() bool {
		return func() bool {
			resp, err := http.Get(p.admin + "/readyz")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == want
		}
	}
	// 60 s are allowed for the first request of a process, 5 s later on.
	t.Logf("not ready after %v", eventually(t, 65*time.Second, "readyz 503", ready(http.StatusServiceUnavailable)))
	a, err := post(t.Context(), p.url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusServiceUnavailable || a.header.Get("retry-after") == "" || a.header.Get("x-penstock-reason") == "" {
		t.Errorf("answer while the engine hangs: %d, headers %v, body %s; want 503 with Retry-After and a reason", a.status, a.header, a.raw)
	}
	signal(t, core, "CONT")
	stopped = false
	t.Logf("ready again after %v", eventually(t, 10*time.Second, "readyz 200", ready(http.StatusOK)))
	if first := <-done; first != nil && (first.status != http.StatusOK || first.usage == nil && first.text == "") {
		t.Errorf("the stream that ran while the engine hung: %d %s", first.status, first.raw)
	}
	if a, err = post(t.Context(), p.url+"/v1/completions", body); err != nil || a.status != http.StatusOK {
		t.Errorf("after recovery: %v %v", a, err)
	}
}
