//go:build e2e

package vllm

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
)

// realEngine is a client of the engine in E2E_ENGINE, http://host:port, which
// scripts/e2e starts. It must be idle and of 10 ms steps or more.
func realEngine(t *testing.T) (c *Client, model string) {
	t.Helper()
	url := os.Getenv("E2E_ENGINE")
	if url == "" {
		t.Fatal("E2E_ENGINE is not set; run scripts/e2e")
	}
	c = connect(t, url)
	models, err := c.Models(within(t))
	if err != nil || len(models) == 0 {
		t.Fatalf("models = %v, %v", models, err)
	}
	version, err := c.Version(within(t))
	t.Logf("vLLM %s serves %+v (%v)", version, models, err)
	return c, models[0].ID
}

// TestRealEngineUsageIsInvisible holds that a client sees the same events whether
// we ask the engine for usage or not.
func TestRealEngineUsageIsInvisible(t *testing.T) {
	c, model := realEngine(t)
	bodies := map[string]string{
		"/v1/chat/completions": `{"model":"` + model + `","stream":true,"seed":7,"temperature":0,"max_tokens":12,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]`,
		"/v1/completions":      `{"model":"` + model + `","stream":true,"seed":7,"temperature":0,"max_tokens":12,"ignore_eos":true,"prompt":["ab","cdef"],"n":1`,
	}
	// The one difference: the fingerprint of a stream's last event goes to the
	// usage event when there is one. A busy API server joins the text of several
	// steps into one event, so only the form of events is compared.
	mask := regexp.MustCompile(`"(id|text|content)":"([^"\\]|\\.)*"|"created":\d+|,"system_fingerprint":"[^"]*"`)
	countUsage := regexp.MustCompile(`((?:total|completion)_tokens":)\d+`)
	type seen struct {
		forms map[string]bool
		last  Usage
	}
	run := func(path, options string) seen {
		s, err := c.Stream(within(t), Request{Path: path, Attempt: "real-" + time.Now().String()[11:29], Stream: true, Body: []byte(bodies[path] + options + "}")})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		text, last, err := shown(s)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		forms := map[string]bool{}
		for _, e := range strings.SplitAfter(mask.ReplaceAllString(text, ""), "\n\n") {
			forms[countUsage.ReplaceAllString(e, "${1}N")] = true
		}
		return seen{forms, last}
	}
	optionSets := []string{"", `,"stream_options":{"include_usage":true}`, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, `,"stream_options":{}`}
	plain := map[string]seen{}
	for path := range bodies {
		for _, options := range optionSets {
			plain[path+options] = run(path, options)
		}
	}
	if err := c.ProbeUsage(within(t), model); err != nil || c.usage.Load() != usageAccepted {
		t.Fatalf("probe: state %d, %v", c.usage.Load(), err)
	}
	for path := range bodies {
		full := plain[path+optionSets[2]].last
		for _, options := range optionSets {
			after := run(path, options)
			if diff := cmp.Diff(plain[path+options].forms, after.forms); diff != "" {
				t.Errorf("%s%s (-engine's own +ours):\n%s", path, options, diff)
			}
			if after.last != full {
				t.Errorf("%s%s: usage %+v, want %+v", path, options, after.last, full)
			}
			t.Logf("%s%s: without injection %+v, with %+v", path, options, plain[path+options].last, after.last)
		}
	}
}

// TestRealEngineAborts holds that Close frees the engine's running request.
func TestRealEngineAborts(t *testing.T) {
	c, model := realEngine(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	running := func() bool {
		resp, err := http.Get(c.base + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, _ := io.ReadAll(resp.Body)
		return regexp.MustCompile(`(?m)^vllm:num_requests_running\{.*\} [1-9]`).Match(page)
	}
	for range 5 {
		s, err := c.Stream(within(t), Request{
			Path: "/v1/completions", Attempt: "abort-" + time.Now().String()[11:29], Stream: true,
			Body: []byte(`{"model":"` + model + `","stream":true,"prompt":"x","max_tokens":900,"ignore_eos":true}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := s.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if !running() {
			t.Error("not running before the abort")
		}
		start := time.Now()
		s.Close()
		for running() {
			if time.Since(start) > patience {
				t.Fatal("still running")
			}
		}
		t.Logf("freed after %v", time.Since(start))
	}
}

func TestRealEngineRefuses(t *testing.T) {
	c, model := realEngine(t)
	_, err := c.Stream(within(t), Request{Path: "/v1/completions", Attempt: "r-1", Stream: true, Body: []byte(`{"model":"nope","prompt":"x","stream":true}`)})
	checkError(t, err, reason.EngineRefused, 404, "nope")
	_, err = c.Do(within(t), Request{Path: "/v1/completions", Attempt: "r-2", Body: []byte(`{"model":"` + model + `","prompt":"` + strings.Repeat("x", 70000) + `"}`)})
	checkError(t, err, reason.EngineRefused, 400, "context length")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.Do(ctx, Request{Path: "/v1/completions", Attempt: "r-3", Body: []byte(`{"model":"` + model + `","prompt":"x","max_tokens":900,"ignore_eos":true}`)})
	checkError(t, err, reason.Aborted, 0, "deadline")
}
