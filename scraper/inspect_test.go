package scraper

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInspect(t *testing.T) {
	tests := []struct {
		name, full string
		filter     bool // the engine serves a page of only our names
		found      int
		want       Report // without Found, and Filtered at its sign
	}{
		{"a page of vLLM 0.32", "running-and-waiting.txt", true, 11, Report{Ranks: 1, KVTokens: 2048, Bytes: 50650, Filtered: 1}},
		{"the filter is ignored", "running-and-waiting.txt", false, 11, Report{Ranks: 1, KVTokens: 2048, Bytes: 50650}},
		{"two engines", "dp2.txt", false, 11, Report{Ranks: 2, KVTokens: 4096, Bytes: 79863}},
		{"an old name", "made-gpu-name.txt", false, 4, Report{
			Ranks: 1, Refused: -1, Bytes: 697, Renamed: []string{"vllm:gpu_cache_usage_perc"},
			Missing: []string{
				"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count",
				"vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count", "vllm:engine_sleep_state", "vllm:cache_config_info",
			},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			page, err := os.ReadFile("testdata/" + tt.full)
			if err != nil {
				t.Fatal(err)
			}
			var ours []byte
			for line := range bytes.Lines(page) {
				if name, _, _ := bytes.Cut(line, []byte("{")); byName[string(name)].name != "" {
					ours = append(ours, line...)
				}
			}
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.filter && r.URL.Path == "/metrics/" && len(r.URL.Query()["name[]"]) > 0 {
					_, _ = w.Write(ours)
					return
				}
				_, _ = w.Write(page)
			}))
			defer engine.Close()
			cfg := DefaultConfig()
			cfg.URL = engine.URL
			got, err := Inspect(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Found) != tt.found {
				t.Errorf("found %d names %v, want %d", len(got.Found), got.Found, tt.found)
			}
			got.Found, got.Filtered = nil, min(got.Filtered, 1)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInspectWithoutStats(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("# TYPE python_info gauge\npython_info 1\n"))
	}))
	defer engine.Close()
	cfg := DefaultConfig()
	cfg.URL = engine.URL
	_, err := Inspect(t.Context(), cfg)
	if e := (*Error)(nil); !errors.As(err, &e) || e.Problem != Missing {
		t.Errorf("Inspect = %v, want a missing name", err)
	}
}
