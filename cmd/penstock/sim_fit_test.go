package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/stack"
	"penstock/sim/fit"
	"penstock/sim/world"
	"penstock/vllm/simengine"
)

// fitLab is a small, fast simulated engine.
func fitLab(t *testing.T) *stack.Simulated {
	t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.Engine.Blocks, cfg.Engine.MaxSeqs, cfg.Engine.MaxBatchedTokens = 1001, 32, 1024
	cfg.Engine.Base, cfg.Engine.PerPrefillToken = 4*time.Millisecond, 20*time.Microsecond
	engine, err := stack.NewSimulated("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return engine
}

func TestSimFit(t *testing.T) {
	engine := fitLab(t)
	o := fitOptions{engine: engine.URL(), output: "yaml", fit: fit.DefaultConfig()}
	o.fit.Prompts, o.fit.Batches, o.fit.Steps = []int{32, 512, 2048}, []int{1, 4, 16}, 8
	var out, progress bytes.Buffer
	if err := o.run(t.Context(), &out, &progress); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "fit.yaml")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := world.LoadProfile(file)
	if err != nil {
		t.Fatalf("%v in\n%s", err, &out)
	}
	e := p.Engine
	// Bounds for a busy machine; sim/fit's tests have those for a quiet one.
	if off := math.Abs(e.Base.Seconds()/0.004 - 1); off > 0.5 {
		t.Errorf("step %v, want about 4ms", e.Base)
	}
	if e.Capacity() != 16_000 || e.BlockSize != 16 || e.MaxModelLen != 8192 {
		t.Errorf("%d KV tokens, blocks of %d, context %d; want 16000, 16, 8192 as the engine says", e.Capacity(), e.BlockSize, e.MaxModelLen)
	}
	if !strings.Contains(progress.String(), "left") || !strings.Contains(out.String(), "max_num_seqs: 256  # not told") {
		t.Errorf("progress %q; profile\n%s", &progress, &out)
	}
}

func TestSimFitRefuses(t *testing.T) {
	engine := fitLab(t)
	silent := http.NewServeMux() // an engine that tells little
	models := `{"data":[{"id":"m","max_model_len":4096}]}`
	silent.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, models) })
	silent.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0\n")
	})
	odd := httptest.NewServer(silent)
	defer odd.Close()
	for _, c := range []struct {
		name, want string
		code       int
		set        func(*fitOptions)
	}{
		{"no engine named", "--engine", exit.Usage, func(o *fitOptions) { o.engine = "" }},
		{"not an URL", "--engine", exit.Usage, func(o *fitOptions) { o.engine = "sim" }},
		{"output", "-o", exit.Usage, func(o *fitOptions) { o.output = "table" }},
		{"model", "--model", exit.Usage, func(o *fitOptions) { o.model = "nobody" }},
		{"key file", "--engine-api-key-file", exit.Usage, func(o *fitOptions) { o.key = "/nowhere" }},
		{"nobody there", "no engine at", exit.Unreachable, func(o *fitOptions) { o.engine = "http://127.0.0.1:1" }},
		{"no KV tokens told", "--kv-tokens", exit.Usage, func(o *fitOptions) { o.engine = odd.URL }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := fitOptions{engine: engine.URL(), output: "yaml", fit: fit.DefaultConfig()}
			c.set(&o)
			err := o.run(t.Context(), io.Discard, io.Discard)
			if exit.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("got error %v, want code %d and %q in it", err, c.code, c.want)
			}
		})
	}
}
