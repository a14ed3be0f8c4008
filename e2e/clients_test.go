//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// run runs a client program; its output is shown when it fails.
func run(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), append(env, "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1")...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	if len(out) < 400 {
		t.Logf("%s", out)
	}
}

func here(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

func TestOpenAIPython(t *testing.T) {
	t.Parallel()
	p := start(t)
	run(t, nil, filepath.Join(cache, "vllm/venv/bin/python"), here(t, "clients/openai_client.py"), p.url)
}

func TestOpenAINode(t *testing.T) {
	t.Parallel()
	p := start(t)
	run(t, nil, "node", here(t, "clients/openai_client.mjs"), p.url, filepath.Join(cache, "node/node_modules"))
}

func TestVLLMBenchServe(t *testing.T) {
	t.Parallel()
	p := start(t)
	result := filepath.Join(t.TempDir(), "result.json")
	run(t, nil, filepath.Join(cache, "vllm/venv/bin/vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", p.url,
		"--endpoint", "/v1/chat/completions", "--model", "tiny", "--tokenizer", filepath.Join(cache, "vllm/run", "e2e", "model"),
		"--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "32", "--num-prompts", "40", "--request-rate", "8",
		"--ignore-eos", "--save-result", "--result-filename", result)
	var got struct {
		Completed int `json:"completed"`
		Output    int `json:"total_output_tokens"`
	}
	read(t, result, &got)
	if got.Completed != 40 || got.Output != 40*32 {
		t.Errorf("completed %d requests with %d output tokens, want 40 with %d", got.Completed, got.Output, 40*32)
	}
}

func TestAIPerf(t *testing.T) {
	t.Parallel()
	p := start(t)
	home := t.TempDir()
	run(t, nil, filepath.Join(cache, "vllm/venv/bin/python"), here(t, "../scripts/vllm/make_model.py"), t.TempDir(), "--hf-home", home)
	out := t.TempDir()
	run(t, []string{"HF_HOME=" + home}, filepath.Join(cache, "aiperf/bin/aiperf"), "profile", "--model", "tiny", "--url", p.url, "--endpoint-type", "chat",
		"--streaming", "--tokenizer", "local/tiny", "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "32", "--request-count", "40",
		"--request-rate", "8", "--extra-inputs", "ignore_eos:true", "--ui-type", "none", "--no-gpu-telemetry", "--output-artifact-dir", out)
	var got struct {
		Count struct {
			Avg float64 `json:"avg"`
		} `json:"request_count"`
	}
	read(t, filepath.Join(out, "profile_export_aiperf.json"), &got)
	if got.Count.Avg != 40 {
		t.Errorf("aiperf counted %v good requests, want 40", got.Count.Avg)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
