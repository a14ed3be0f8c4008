//go:build e2e

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"penstock/cmd/penstock/exit"
	"penstock/doctor"
)

// TestRealDoctor visits the real broker and Redis: well as they were set up, and with
// the right fix for a topic and a group that are not there.
func TestRealDoctor(t *testing.T) {
	rocketmq, redis := os.Getenv("E2E_ROCKETMQ"), os.Getenv("E2E_REDIS")
	if rocketmq == "" || redis == "" {
		t.Fatal("E2E_ROCKETMQ and E2E_REDIS must be the HOST:PORT of a real proxy and a real Redis; run scripts/e2e")
	}
	visit := func(code int, args ...string) map[string]doctor.Check {
		t.Helper()
		args = append([]string{"doctor", "-o", "json", "--rocketmq", rocketmq, "--redis", redis, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}, args...)
		var out, errs bytes.Buffer
		if got := run(args, &out, &errs); got != code {
			t.Fatalf("penstock %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out.String(), errs.String())
		}
		var said struct{ Checks []doctor.Check }
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			t.Fatal(err)
		}
		found := map[string]doctor.Check{}
		for _, c := range said.Checks {
			found[c.Group+"/"+c.Name] = c
		}
		return found
	}

	checks := visit(exit.OK)
	for name, c := range checks {
		unseen := name == "RocketMQ/topic TTL" || name == "RocketMQ/group events"
		if c.Group != "Host" && (c.Status == doctor.Warn) != unseen {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for _, name := range []string{"RocketMQ/lite binding", "RocketMQ/group order", "RocketMQ/group retries", "Redis/eviction", "Redis/persistence"} {
		if checks[name].Status != doctor.OK {
			t.Errorf("%s: %+v, want ok", name, checks[name])
		}
	}
	for _, tt := range []struct{ flag, value, check, fix string }{
		{"--topic", "no-such-topic", "RocketMQ/topic", "mqadmin updateTopic -c DefaultCluster -t no-such-topic "},
		{"--group", "no-such-group", "RocketMQ/group", "mqadmin updateSubGroup -c DefaultCluster -g no-such-group "},
	} {
		c := visit(exit.Failed, tt.flag, tt.value)[tt.check]
		if c.Status != doctor.Fail || !strings.HasPrefix(c.Fix, tt.fix) {
			t.Errorf("%s %s: %+v, want a failure with the fix %q", tt.flag, tt.value, c, tt.fix)
		}
	}
}
