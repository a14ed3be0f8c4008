package report

import (
	"bytes"
	"strings"
	"testing"

	"penstock/sim"
)

func row(policy, workload string, load float64, setting string, requests, tokens, even float64) sim.Row {
	return sim.Row{
		Policy: policy, Workload: workload, Profile: "kv-bound", Load: load, Setting: setting,
		Shifts:  []sim.Shift{{Goodput: requests / 2, GoodputOwn: requests / 2, TokensOwn: tokens / 2}, {Goodput: requests * 2, GoodputOwn: requests * 2, TokensOwn: tokens * 2}},
		Figures: sim.Figures{Goodput: requests, GoodputOwn: requests, TokenGoodput: tokens, Even: even},
	}
}

// TestCompare: each unit has the other policy's best setting in it; long prompts
// refused are compared in tokens; one setting for all cells is a policy of its own.
func TestCompare(t *testing.T) {
	after := 5.0
	burst := row("forecast", "conv", 1.5, "", 6, 6000, 1)
	burst.Scenario, burst.Recover = "burst 3x60s", &after
	storm := row("forecast", "conv", 1.5, "", 9.5, 9000, 1)
	storm.Scenario = "retries 3"
	rows := []sim.Row{
		row("forecast", "conv", 1.5, "", 10, 10_000, 1),
		row("forecast", "code", 1.5, "", 10, 10_000, 0.9),
		row("none", "conv", 1.5, "", 0.5, 400, 1),
		row("vllm-caps", "conv", 1.5, "narrow", 20, 8_000, 0.3),
		row("vllm-caps", "conv", 1.5, "wide", 8, 12_500, 0.9),
		row("vllm-caps", "code", 1.5, "narrow", 5, 2_000, 1),
		row("vllm-caps", "code", 1.5, "wide", 4, 4_000, 1),
		burst, storm,
	}
	var out bytes.Buffer
	if err := Compare(&out, rows, "forecast"); err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) > 2 {
			key := f[0]
			if f[0] == "goodput" && f[1] == "over" {
				key = "target " + f[2]
			} else if f[0] == "goodput" || f[0] == "seconds" {
				key = f[0] + " " + f[1]
			}
			fields[key] = strings.Join(f, " ")
		}
	}
	for key, want := range map[string]string{
		// conv: 20 requests, 12,500 tokens; even-handed: narrow in tokens is 1.25, wide in requests 1.25.
		"vllm-caps":        "vllm-caps 1.5 2 1.00 0.50 1 1.00 0.50 1 1.41 0.80 1 1.58 1.25 0 conv on kv-bound",
		"vllm-caps-fixed":  "vllm-caps-fixed 1.5 2 1.00 0.50 1 1.00 0.50 1 1.41 0.80 1 1.58 1.25 0 conv on kv-bound",
		"target none":      "goodput over none conv at 1.5 1 >= 10, mean 19.54 19.54 conv on kv-bound at 1.5 yes",
		"target vllm-caps": "goodput over vllm-caps all 2 >= 1, mean 1.58 1.25 conv on kv-bound at 1.5 yes",
		"goodput with":     "goodput with retries over without all 1 >= 0.9, each 0.95 0.95 conv on kv-bound at 1.5 yes",
		"seconds to":       "seconds to recover all 1 <= 4, each 5.00 5.00 conv on kv-bound at 1.5 NO",
	} {
		if fields[key] != want {
			t.Errorf("%s:\ngot  %s\nwant %s", key, fields[key], want)
		}
	}
	if !strings.Contains(out.String(), "\n0 cells below 0.99") {
		t.Errorf("no cell is lost even-handed:\n%s", out.String())
	}
}
