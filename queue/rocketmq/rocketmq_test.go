package rocketmq

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"Endpoint":       func(c *Config) { c.Endpoint = "broker" },
		"Topic":          func(c *Config) { c.Topic = "" },
		"Group":          func(c *Config) { c.Group = strings.Repeat("g", 128) },
		"SecretKey":      func(c *Config) { c.AccessKey = "a" },
		"CAFile":         func(c *Config) { c.CAFile = "/nowhere" },
		"PublishTimeout": func(c *Config) { c.PublishTimeout = 0 },
		"Concurrency":    func(c *Config) { c.Concurrency = 0 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Validate with a bad %s = %v, want an error naming it", field, err)
		}
	}
}
