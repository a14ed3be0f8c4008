package scraper

import (
	"testing"
	"time"
)

func TestStepTime(t *testing.T) {
	read := func(lines string) *values {
		var r reading
		v, err := r.page(page{body: []byte(goodPage + lines)})
		if err != nil {
			t.Fatal(err)
		}
		return &v
	}
	const itl = "vllm:inter_token_latency_seconds_"
	const tpot = "vllm:time_per_output_token_seconds_"
	for _, tc := range []struct {
		name, before, after string
		want                time.Duration
		restarted           bool
	}{
		{"decode", itl + "sum 1\n" + itl + "count 10\n", itl + "sum 1.5\n" + itl + "count 20\n", 50 * time.Millisecond, false},
		{"no decode", itl + "sum 1\n" + itl + "count 10\n", itl + "sum 1\n" + itl + "count 10\n", 0, false},
		{"older name", tpot + "sum 1\n" + tpot + "count 10\n", tpot + "sum 2\n" + tpot + "count 20\n", 100 * time.Millisecond, false},
		{"name changed", tpot + "sum 1\n" + tpot + "count 10\n", itl + "sum 2\n" + itl + "count 5\n", 0, false},
		{"newer name preferred", itl + "sum 0\n" + itl + "count 0\n" + tpot + "sum 0\n" + tpot + "count 0\n", tpot + "sum 9\n" + tpot + "count 9\n" + itl + "sum 1\n" + itl + "count 10\n", 100 * time.Millisecond, false},
		{"count fell", itl + "sum 1\n" + itl + "count 10\n", itl + "sum 2\n" + itl + "count 5\n", 0, true},
		{"steps fell", "vllm:iteration_tokens_total_count 5\n", "vllm:iteration_tokens_total_count 4\n", 0, true},
		{"preemptions fell", "vllm:num_preemptions_total 5\n", "vllm:num_preemptions_total 0\n", 0, true},
		{"counter gone", "vllm:prompt_tokens_total 5\n", "", 0, false},
		{"absurd", itl + "sum 1\n" + itl + "count 10\n", itl + "sum 1e17\n" + itl + "count 11\n", 0, false},
	} {
		var h history
		h.sample(read(tc.before), time.Time{}, time.Time{})
		got := h.sample(read(tc.after), time.Time{}, time.Time{})
		if (got.StepTime-tc.want).Abs() > time.Microsecond || got.Restarted != tc.restarted {
			t.Errorf("%s: step %v, restarted %v; want %v, %v", tc.name, got.StepTime, got.Restarted, tc.want, tc.restarted)
		}
	}
}
