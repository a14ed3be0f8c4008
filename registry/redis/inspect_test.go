package redis

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	respserver "github.com/alicebob/miniredis/v2/server"
)

// TestInspect: what a server says of itself is handed on, and a command that it
// forbids is no error of the whole.
func TestInspect(t *testing.T) {
	t.Parallel()
	s, err := respserver.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for name, answer := range map[string]respserver.Cmd{
		"INFO": func(c *respserver.Peer, _ string, _ []string) {
			c.WriteBulk("# Server\r\nredis_version:7.2.4\r\n\r\n# Memory\r\nmaxmemory_policy:allkeys-lru\r\n")
		},
		"TIME": func(c *respserver.Peer, _ string, _ []string) {
			c.WriteStrings([]string{"4000000000", "0"})
		},
		"EVAL":   func(c *respserver.Peer, _ string, _ []string) { c.WriteError("NOPERM no scripts") },
		"CONFIG": func(c *respserver.Peer, _ string, _ []string) { c.WriteError("NOPERM no config") },
	} {
		if err := s.Register(name, answer); err != nil {
			t.Fatal(err)
		}
	}
	cfg := DefaultConfig()
	cfg.Addr = s.Addr().String()
	r, err := Inspect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Info["redis_version"] != "7.2.4" || r.Info["maxmemory_policy"] != "allkeys-lru" || len(r.Info) != 2 {
		t.Errorf("Info = %v", r.Info)
	}
	if r.RoundTrip <= 0 || r.Ahead < time.Until(time.Unix(4e9, 0))-time.Minute {
		t.Errorf("round trip %v, ahead %v; want the clock of the year 2096", r.RoundTrip, r.Ahead)
	}
	if r.Scripts == nil || !strings.Contains(r.Scripts.Error(), "NOPERM") || r.Snapshots != "" {
		t.Errorf("Scripts = %v, Snapshots = %q; want a refusal and none", r.Scripts, r.Snapshots)
	}
}

func TestInspectAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // accepts and says nothing
	cfg := DefaultConfig()
	cfg.Addr = l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r, err := Inspect(ctx, cfg); err == nil {
		t.Errorf("Inspect = %+v, want an error", r)
	}
}
