//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSameAnswer: at temperature 0 the answer through penstock is the engine's own.
func TestSameAnswer(t *testing.T) {
	p := start(t)
	prompt := strings.Repeat("The gate meters water. ", 8)
	chat := fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, prompt)
	for _, tt := range []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", `{"model":"tiny",` + chat + `,"max_tokens":40,"temperature":0}`},
		{"chat stream", "/v1/chat/completions", `{"model":"tiny",` + chat + `,"max_tokens":40,"temperature":0,"stream":true}`},
		{"chat stream usage", "/v1/chat/completions", `{"stream_options":{"include_usage":true},"model":"tiny",` + chat + `,"max_tokens":40,"temperature":0,"stream":true}`},
		{"chat stream continuous usage", "/v1/chat/completions", `{"model":"tiny",` + chat + `,"max_tokens":9,"temperature":0,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		{"completion", "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":30,"temperature":0}`, prompt)},
		{"completion stream", "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":30,"temperature":0,"stream":true,"ignore_eos":true}`, prompt)},
		{"completion list", "/v1/completions", `{"model":"tiny","prompt":["one","two"],"max_tokens":5,"temperature":0}`},
		{"engine refuses", "/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":-1}`},
		{"too long", "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":1}`, strings.Repeat("a", 9000))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			direct, through := both(t, p, tt.path, tt.body)
			for _, d := range []string{
				cmp.Diff(direct.status, through.status), cmp.Diff(direct.text, through.text), cmp.Diff(direct.finish, through.finish),
				cmp.Diff(direct.usage, through.usage), cmp.Diff(direct.events, through.events),
				cmp.Diff(direct.header.Get("Content-Type"), through.header.Get("Content-Type")),
			} {
				if d != "" {
					t.Error(d)
				}
			}
			if through.status == 200 && through.header.Get("x-penstock-node") == "" {
				t.Error("no x-penstock-node header")
			}
			if through.status == 200 && through.text == "" {
				t.Error("no text")
			}
		})
	}
}

// both asks the engine and penstock the same. On a busy machine the engine now and then
// says two tokens in one event: then both are asked again, three times at most.
func both(t *testing.T, p *penstock, path, body string) (direct, through *answer) {
	t.Helper()
	for range 3 {
		var err error
		if direct, err = post(t.Context(), engine+path, body); err != nil {
			t.Fatal(err)
		}
		if through, err = post(t.Context(), p.url+path, body); err != nil {
			t.Fatal(err)
		}
		if direct.events == through.events {
			break
		}
	}
	return direct, through
}

// TestAbort: a client that closes frees the engine within two steps, wherever its
// request was.
func TestAbort(t *testing.T) {
	p := start(t)
	idle := func() bool {
		running, err := metric(engine, "vllm:num_requests_running")
		kv, err2 := metric(engine, "vllm:kv_cache_usage_perc")
		return err == nil && err2 == nil && running == 0 && kv == 0
	}
	for _, tt := range []struct {
		name, extra string
		after       time.Duration // closed this long after the engine shows it
	}{
		{"streaming", `,"stream":true`, 0},
		{"streaming, after a while", `,"stream":true`, 200 * time.Millisecond},
		{"plain", ``, 0},
		{"plain, after a while", ``, 200 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var worst time.Duration
			for range 5 {
				eventually(t, 5*time.Second, "engine idle", idle)
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() {
					_, _ = post(ctx, p.url+"/v1/completions", `{"model":"tiny","prompt":"abcdefgh","max_tokens":4000,"ignore_eos":true`+tt.extra+`}`)
				})
				eventually(t, 5*time.Second, "the engine runs it", func() bool {
					running, err := metric(engine, "vllm:num_requests_running")
					return err == nil && running == 1
				})
				time.Sleep(tt.after)
				cancel()
				worst = max(worst, eventually(t, 2*time.Second, "the engine has freed it", idle))
				wg.Wait()
			}
			t.Logf("client close to blocks free: worst of 5 %v (a step is about 13 ms)", worst)
			if worst > 100*time.Millisecond {
				t.Errorf("worst %v, want at most 100 ms", worst)
			}
			eventually(t, time.Second, "nothing in flight in penstock", func() bool {
				n, err := metric(p.admin, "penstock_inflight_requests")
				return err == nil && n == 0
			})
		})
	}
}
