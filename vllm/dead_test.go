package vllm_test

import (
	"testing"

	"penstock/vllm"
	"penstock/vllm/vllmtest"
)

func TestDead(t *testing.T) {
	engine := vllmtest.Start(t)
	cfg := vllm.DefaultConfig()
	cfg.URL = engine.URL()
	c, err := vllm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, tc := range []struct {
		name   string
		do     func()
		dead   bool
		failed bool
	}{
		{"alive", func() {}, false, false},
		{"hung", func() { engine.Break(vllmtest.Hung) }, false, false},
		{"process gone", func() { engine.Break(vllmtest.EngineDead) }, true, false},
		{"server gone", engine.Stop, false, true},
		{"restarted", engine.Restart, false, false},
	} {
		tc.do()
		if dead, err := c.Dead(t.Context()); dead != tc.dead || (err != nil) != tc.failed {
			t.Errorf("%s: Dead = %v, %v; want %v, an error: %v", tc.name, dead, err, tc.dead, tc.failed)
		}
	}
}
