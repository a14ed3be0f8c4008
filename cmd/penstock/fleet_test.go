package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/vllm/simengine"
	"penstock/vllm/vllmtest"
)

// TestTwoEngines holds that both get work, and that with one dead the other serves.
func TestTwoEngines(t *testing.T) {
	t.Parallel()
	one, two := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond)), vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond))
	p := startProcess(t, nil, urls(one, two)...)
	p.until("both are ready", func() bool { return p.metric("penstock_engine_state", "state=fresh") == 2 })
	many := func(n int) (answered int) {
		replies := make([]reply, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { replies[i] = p.post(completion(20, 8, streamed)) })
		}
		wg.Wait()
		for _, r := range replies {
			if r.complete() {
				answered++
			} else if !r.refused() && !strings.Contains(r.body, "upstream_lost") {
				p.bound("request: %v", r)
			}
		}
		return answered
	}
	if n := many(100); n != 100 {
		p.bound("%d of 100 answered by two engines", n)
	}
	before := [2]int{one.Requests(), two.Requests()}
	if min(before[0], before[1]) < 20 {
		p.bound("engines got %v of 100 requests, want at least 20 each", before)
	}
	// Dead before anybody can know: what it was given runs again on the other.
	one.Stop()
	died := time.Now()
	again := many(100)
	if again != 100 {
		p.bound("%d of 100 answered as one engine died, want all", again)
	}
	took := time.Since(died)
	if took > 2*time.Second {
		p.bound("they took %v, want at most 2 s", took)
	}
	if why := p.readyz(); why != "" || !p.serving() {
		p.bound("with one engine left readyz says %q", why)
	}
	if n := many(50); n != 50 {
		p.bound("%d of 50 answered by the engine that is left", n)
	}
	one.Restart()
	p.until("the one that died is used again", func() bool { many(10); return one.Requests() > before[0]+20 })
	t.Logf("100 requests were shared %v; as one died 100 took %v", before, took.Round(time.Millisecond))
}

// TestTwoModels holds that a model without room refuses nobody of another one.
func TestTwoModels(t *testing.T) {
	t.Parallel()
	tiny := vllmtest.Start(t, vllmtest.WithStep(5*time.Millisecond))
	other := vllmtest.Start(t, vllmtest.WithConfig(func(c *simengine.Config) { c.Model = "other" }))
	p := startProcess(t, nil, urls(tiny, other)...)
	p.until("both models are there", func() bool {
		resp, err := p.client.Get("http://" + p.Address() + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var body strings.Builder
		_ = resp.Write(&body)
		return strings.Contains(body.String(), `"tiny"`) && strings.Contains(body.String(), `"other"`)
	})
	body := strings.Replace(completion(20, 4, ""), `"tiny"`, `"other"`, 1)
	if r := p.post(body); r.status != http.StatusOK {
		t.Fatalf("other, before: %v", r)
	}
	quiet := p.post(body).took
	full := p.flood()
	if !full.refused() || full.status != http.StatusTooManyRequests {
		p.bound("full model: %v, want 429", full)
	}
	waiting := p.metric("penstock_lane_backlog_requests", "model=tiny")
	worst := time.Duration(0)
	for range 50 {
		r := p.post(body)
		if r.status != http.StatusOK {
			p.bound("other, beside a full model: %v", r)
		}
		worst = max(worst, r.took)
	}
	if worst > 500*time.Millisecond {
		p.bound("other took %v beside a full model, want at most 500 ms", worst)
	}
	t.Logf("other: 50 of 50 answered, the slowest in %v (%v alone), beside %v waiting for the full one",
		worst.Round(time.Millisecond), quiet.Round(time.Millisecond), waiting)
}

// flood fills the engine and its queue, more and more, until somebody is refused,
// and returns that refusal. What it sent goes on until the test ends.
func (p *process) flood() reply {
	p.t.Helper()
	ctx, stop := context.WithCancel(p.t.Context())
	refused := make(chan reply, 1000)
	var wg sync.WaitGroup
	p.t.Cleanup(func() { stop(); wg.Wait() })
	send := func() {
		resp, err := p.send(ctx, completion(20, 300, streamed))
		if err != nil {
			return // stopped
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			_, _ = io.Copy(io.Discard, resp.Body)
			return
		}
		body, err := io.ReadAll(resp.Body)
		refused <- reply{status: resp.StatusCode, header: resp.Header, body: string(body), err: err}
	}
	var r reply
	p.until("one is refused", func() bool {
		for range 4 {
			wg.Go(send)
		}
		select {
		case r = <-refused:
			return true
		case <-time.After(50 * time.Millisecond):
			return false
		}
	})
	return r
}

// TestRefusals holds what each refusal carries.
func TestRefusals(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t, vllmtest.WithStep(5*time.Millisecond))
	p := startProcess(t, nil, e.URL())
	if r := p.post(completion(20, 4, "")); r.status != http.StatusOK {
		t.Fatalf("before: %v", r)
	}
	check := func(name string, r reply, status int, why string, again bool) {
		t.Helper()
		told := r.header.Get("Retry-After") != "" && r.header.Get("Retry-After-Ms") != ""
		if r.err != nil || r.status != status || r.reason() != why || told != again || again && !r.refused() {
			p.bound("%s: %v; want %d %s, Retry-After: %v", name, r, status, why, again)
		}
	}
	check("not JSON", p.post("{"), 400, "invalid_request", false)
	check("unknown model", p.post(`{"model":"none","prompt":"x"}`), 404, "model_not_found", false)
	check("header", p.post(completion(20, 4, ""), "X-Slo-Ttft-Ms", "soon"), 400, "invalid_request", false)
	check("too long for the engine", p.post(completion(2000, 4, "")), 400, "engine_refused", false)

	e.Break(vllmtest.ErrorFirst)
	check("engine fails each time, plain", p.post(completion(20, 4, "")), 503, "tries_used", true)
	check("engine fails each time, stream", p.post(completion(20, 4, streamed)), 503, "tries_used", true)
	e.Mend(vllmtest.ErrorFirst)
	e.Break(vllmtest.Busy)
	check("start deadline", p.post(completion(20, 4, ""), "X-Penstock-Start-Timeout-Ms", "300"), 504, "queue_deadline_exceeded", true)
	e.Mend(vllmtest.Busy)
	e.Break(vllmtest.Asleep)
	p.until("asleep", func() bool { return p.readyz() != "" })
	check("no engine", p.post(completion(20, 4, "")), 503, "no_engine", true)
	e.Mend(vllmtest.Asleep)
	p.until("awake", func() bool { return p.readyz() == "" })

	r := p.flood()
	check("overloaded", r, 429, "server_is_overloaded", true)
	t.Logf("overloaded: %v", r)
}

// TestReset holds that a client's RST of one HTTP/2 stream aborts that request in
// the engine, and no other one.
func TestReset(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t, vllmtest.WithStep(2*time.Millisecond))
	p := startProcess(t, nil, e.URL())
	p.client = newH2C(t)
	cut, kept := p.open(completion(20, 900, streamed)), p.open(completion(20, 300, streamed))
	if proto := cut.resp.Proto; proto != "HTTP/2.0" {
		t.Fatalf("protocol %s, want HTTP/2.0", proto)
	}
	at := time.Now()
	cut.close()
	e.WaitFor("one abort", func() bool { return e.Aborts() == 1 })
	freed := time.Since(at)
	if freed > time.Second {
		p.bound("the engine saw the abort after %v, want less than 1 s", freed)
	}
	events, err := kept.rest()
	checkEnd(t, events, err, true)
	if n := e.Aborts(); n != 1 {
		t.Errorf("%d aborts, want 1", n)
	}
	p.until("counted", func() bool { return p.metric("penstock_aborts_total", "stage=streaming", "outcome=canceled") == 1 })
	t.Logf("engine freed %v after the reset", freed.Round(100*time.Microsecond))
}
