package sim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func settingRow(policy, workload string, load float64, setting string, goodput float64) Row {
	return Row{Policy: policy, Workload: workload, Profile: "p", Load: load, Setting: setting, Figures: Figures{Goodput: goodput}}
}

func TestBestAndCarried(t *testing.T) {
	rows := []Row{
		settingRow("forecast", "conv", 1, "", 5),
		settingRow("forecast", "code", 1, "", 5),
		settingRow("vllm-caps", "conv", 1, "narrow", 4),
		settingRow("vllm-caps", "conv", 1, "middle", 3),
		settingRow("vllm-caps", "conv", 1, "wide", 1),
		settingRow("vllm-caps", "code", 1, "narrow", 0),
		settingRow("vllm-caps", "code", 1, "middle", 2),
		settingRow("vllm-caps", "code", 1, "wide", 2.5),
		settingRow("token-bucket", "conv", 1, "a", 1),
		settingRow("token-bucket", "conv", 1, "b", 2),
	}
	want := []Row{rows[0], rows[1], rows[2], rows[7], rows[9]}
	if diff := cmp.Diff(want, Best(rows)); diff != "" {
		t.Errorf("best of each cell (-want +got): %s", diff)
	}
	want = []Row{settingRow("vllm-caps-fixed", "conv", 1, "middle", 3), settingRow("vllm-caps-fixed", "code", 1, "middle", 2)}
	if diff := cmp.Diff(want, Carried(rows)); diff != "" {
		t.Errorf("one setting for all cells (-want +got): %s", diff)
	}
	if got := Carried(rows[:5]); len(got) != 0 {
		t.Errorf("with one cell: %v, want nothing to carry", got)
	}
	for _, policy := range Carriable() {
		if _, err := FindPolicies([]string{policy}); err != nil {
			t.Error(err)
		}
	}
}
