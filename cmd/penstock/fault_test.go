package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/vllm/vllmtest"
)

// raced is set under the race detector, which makes everything several times slower.
var raced bool

// TestFaults breaks the engine under a running penstock in every way an engine
// breaks, and mends it.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		fail   func(*vllmtest.Engine)
		mend   func(*vllmtest.Engine)
		reason string
		runs   bool // what ran goes on and completes
		within time.Duration
	}{
		{"dead", (*vllmtest.Engine).Stop, (*vllmtest.Engine).Restart, "blind", false, 2 * time.Second},
		{"process dead and API alive", breaking(vllmtest.EngineDead), (*vllmtest.Engine).Restart, "engine_down", false, 3 * time.Second},
		{"hung", breaking(vllmtest.Hung), mending(vllmtest.Hung), "stuck", true, 7 * time.Second},
		{"asleep", breaking(vllmtest.Asleep), mending(vllmtest.Asleep), "asleep", true, time.Second},
		{"metrics fail", breaking(vllmtest.MetricsError), mending(vllmtest.MetricsError), "blind", true, 3 * time.Second},
		{"metrics hang", func(e *vllmtest.Engine) { e.SlowMetrics(time.Hour) }, func(e *vllmtest.Engine) { e.SlowMetrics(0) }, "blind", true, 3 * time.Second},
		{"metrics without KV usage", breaking(vllmtest.KVMissing), mending(vllmtest.KVMissing), "blind", true, 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond))
			p := startProcess(t, nil, e.URL())
			if r := p.post(completion(20, 4, "")); r.status != http.StatusOK {
				t.Fatalf("before: %v", r)
			}
			running := p.open(completion(20, 600, streamed))
			tc.fail(e)
			broke := time.Now()
			caught := p.background(completion(20, 4, ""), "X-Penstock-Start-Timeout-Ms", "1500")

			p.until("not ready for "+tc.reason, func() bool { return strings.Contains(p.readyz(), tc.reason) })
			noticed := time.Since(broke)
			p.until("gRPC health NOT_SERVING", func() bool { return !p.serving() })
			if noticed > tc.within {
				p.bound("readyz said so after %v, want %v", noticed, tc.within)
			}
			if r := p.post(completion(20, 4, "")); !r.refused() || r.status != http.StatusServiceUnavailable || r.reason() != "no_engine" {
				p.bound("a request while it is broken: %v; want 503 no_engine with Retry-After", r)
			}
			var r reply
			if !tc.runs { // nothing answers it: it is told by its deadline
				if r = <-caught; !r.refused() || r.took > 2*time.Second {
					p.bound("a request sent as it broke: %v; want a refusal by its start deadline of 1.5 s", r)
				}
			}
			tc.mend(e)
			mended := time.Now()
			p.until("ready again", func() bool { return p.readyz() == "" && p.serving() })
			back := time.Since(mended)
			p.until("an answer again", func() bool { return p.post(completion(20, 4, "")).status == http.StatusOK })

			if tc.runs {
				if r = <-caught; r.status != http.StatusOK && !r.refused() {
					p.bound("a request sent as it broke: %v; want an answer or a refusal", r)
				}
			}
			events, err := running.rest()
			checkEnd(t, events, err, tc.runs)
			t.Logf("noticed after %v, ready %v after it was mended; sent as it broke: %d %s after %v",
				noticed.Round(time.Millisecond), back.Round(time.Millisecond), r.status, r.reason(), r.took.Round(time.Millisecond))
		})
	}
}

func breaking(f vllmtest.Fault) func(*vllmtest.Engine) {
	return func(e *vllmtest.Engine) { e.Break(f) }
}

func mending(f vllmtest.Fault) func(*vllmtest.Engine) {
	return func(e *vllmtest.Engine) { e.Mend(f) }
}

// checkEnd holds that a stream ended with [DONE] and, unless whole, with an error
// event before it.
func checkEnd(t *testing.T, events []string, err error, whole bool) {
	t.Helper()
	if err != nil || len(events) < 2 || events[len(events)-1] != "[DONE]" {
		t.Errorf("stream: %d events, the last %q, error %v; want [DONE] at the end", len(events), events[max(0, len(events)-2):], err)
		return
	}
	last := events[len(events)-2]
	if failed := strings.Contains(last, `"error"`); failed == whole {
		t.Errorf("stream: last event before [DONE] is %q; an error there is %v, want %v", last, failed, !whole)
	}
	if !whole && !strings.Contains(last, `"code":"upstream_lost"`) {
		t.Errorf("stream: error event is %q, want code upstream_lost", last)
	}
}

// TestRestart holds that a restart of the engine, counters from 0, costs only what
// was streaming: a request without an answer runs again.
func TestRestart(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond))
	p := startProcess(t, nil, e.URL())
	if r := p.post(completion(20, 4, "")); r.status != http.StatusOK {
		t.Fatalf("before: %v", r)
	}
	streaming := p.open(completion(20, 600, streamed))
	plain := p.background(completion(20, 200, ""))
	e.SlowAnswers(5 * time.Second)
	silent := p.background(completion(20, 8, streamed))
	p.until("three requests run", func() bool { return p.metric("penstock_inflight_requests") == 3 })
	e.SlowAnswers(0)
	e.Restart()
	events, err := streaming.rest()
	checkEnd(t, events, err, false)
	for name, done := range map[string]<-chan reply{"plain": plain, "stream without a byte": silent} {
		r := <-done
		if r.err != nil || r.status != http.StatusOK || r.header.Get("X-Penstock-Attempts") != "2" {
			p.bound("%s: %v, attempts %s; want its answer by the second attempt", name, r, r.header.Get("X-Penstock-Attempts"))
		}
		t.Logf("%s: answered %v after it was sent, by attempt %s", name, r.took.Round(time.Millisecond), r.header.Get("X-Penstock-Attempts"))
	}
	p.until("ready", func() bool { return p.readyz() == "" })
}

// TestFrozenGauge holds that a gate closed by a gauge that nothing will move any
// more opens within 2 s: a probe goes through.
func TestFrozenGauge(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t)
	frozen := freezer(t, e)
	p := startProcess(t, nil, frozen.URL)
	if r := p.post(completion(20, 4, "")); r.status != http.StatusOK {
		t.Fatalf("before: %v", r)
	}
	// Others fill the engine past the gate, then all of them leave at once, and the
	// page stays as it was: vLLM sets its gauges in a step only.
	frozen.full.Store(true)
	p.until("the gate is closed", func() bool { return p.metric("penstock_engine_state", "state=closed") == 1 })
	closed := time.Now()
	r := p.post(completion(20, 4, ""), "X-Penstock-Start-Timeout-Ms", "10000")
	opened := time.Since(closed)
	if r.status != http.StatusOK {
		t.Fatalf("behind the closed gate: %v", r)
	}
	if opened > 2300*time.Millisecond {
		p.bound("the first request went through %v after the gauge froze, want 2 s", opened)
	}
	if n := p.metric("penstock_decisions_total", "action=start", "reason=probe"); n != 1 {
		t.Errorf("%v probes, want 1", n)
	}
	p.until("the gate is open", func() bool { return p.metric("penstock_engine_state", "state=fresh") == 1 })
	t.Logf("reopened %v after the gauge froze", opened.Round(time.Millisecond))
}

// frozenPage is an engine whose page says, once full is set, 95 % KV usage until the
// engine gets a request.
type frozenPage struct {
	*httptest.Server
	full atomic.Bool
}

func freezer(t *testing.T, e *vllmtest.Engine) *frozenPage {
	t.Helper()
	target, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	f := &frozenPage{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	transport := &http.Transport{}
	proxy.Transport = transport
	proxy.FlushInterval = -1
	proxy.ModifyResponse = func(r *http.Response) error {
		if !strings.HasPrefix(r.Request.URL.Path, "/metrics") {
			return nil
		}
		page, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if f.full.Load() {
			lines := bytes.SplitAfter(page, []byte("\n"))
			for i, line := range lines {
				if at := bytes.LastIndexByte(line, ' '); bytes.HasPrefix(line, []byte("vllm:kv_cache_usage_perc{")) {
					lines[i] = append(line[:at:at], " 0.95\n"...)
				}
			}
			page = bytes.Join(lines, nil)
		}
		r.Body = io.NopCloser(bytes.NewReader(page))
		r.ContentLength = int64(len(page))
		r.Header.Del("Content-Length")
		return nil
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f.full.Store(false)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		f.Close()
		transport.CloseIdleConnections()
	})
	return f
}
