package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestTiersFromFile(t *testing.T) {
	load := func(text string) (Tiers, Origins, error) {
		t.Helper()
		path := write(t, text)
		var tiers Tiers
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Var(&tiers, "tiers", "classes")
		origins, err := Load(f, path, func(string) (string, bool) { return "", false })
		return tiers, origins, err
	}
	want := Tiers{
		{Name: "vip", Floor: 0.2, Ceiling: 1, Age: 5 * time.Second, SLOTTFT: time.Second},
		{Name: "normal", Ceiling: 1, Age: 5 * time.Second},
		{Name: "trial", Ceiling: 0.5, Age: 30 * time.Second},
		{Name: "batch", Ceiling: 0.25, SLOTTFT: 10 * time.Minute, SLOTPOT: time.Second},
	}
	got, origins, err := load(`# classes
tiers:
  - name: vip
    floor: 0.2
    slo-ttft: 1s
  - {name: normal}
  - {name: trial, ceiling: 0.5}
  - name: batch
    ceiling: 0.25
    age: 0s
    slo-ttft: 10m
    slo-tpot: 1s
`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if at := origins["tiers"]; !strings.HasSuffix(at, "penstock.yaml:2") && !strings.HasSuffix(at, "penstock.yaml:3") {
		t.Errorf("origin %q, want the line", at)
	}
	var again Tiers
	if err := again.Set(got.String()); err != nil || !cmp.Equal(want, again) {
		t.Errorf("%s is read as %+v, %v", got.String(), again, err)
	}
	for text, want := range map[string]string{
		"tiers: 7":                                              "want a list of",
		"tiers: [{name: vip, flor: 0.1}]":                       `unknown field "flor"`,
		"tiers: [{name: vip, ceiling: 1.5}]":                    `ceiling of tier "vip" is 1.5; set a share above 0, up to 1`,
		"tiers: [{name: vip, age: 5}]":                          "want a list of",
		"tiers: [{name: a, floor: 0.6}, {name: b, floor: 0.6}]": "floors add up to 1.2",
	} {
		if _, _, err := load(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "penstock.yaml:1") {
			t.Errorf("%s: error %v, want its place and %q", text, err, want)
		}
	}
	if got, _, err := load("tiers: \"\"\n"); err != nil || len(got) != 0 {
		t.Errorf("none: %+v, %v", got, err)
	}
	if got := (&Tiers{}).String(); got != "" {
		t.Errorf("no tiers are %q, want nothing", got)
	}
}
