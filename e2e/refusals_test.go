//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/policy/apikey"
)

// refusing is a policy under which each tenant, whose key is its name, meets one refusal.
func refusing() string {
	tenants := map[string]string{
		"plain": "", "narrow": "", "paced": "",
		"rate":   "quota: {requests-per-minute: 1}",
		"budget": "quota: {windows: [{requests: 1, per: 24h}]}",
		"one":    "deadline: 1s",
		"barred": "models: [other]",
	}
	var b strings.Builder
	b.WriteString("tenants:\n")
	for name, more := range tenants {
		_, _ = fmt.Fprintf(&b, "  %s: {keys: [%q]%s}\n", name, apikey.Hash(name), strings.TrimSuffix(", "+more, ", "))
	}
	b.WriteString(`rules: [{name: nowhere, when: {headers: {x-where: nowhere}}, then: {pool: none}}]
lanes:
  patterns:
    - {tenant: narrow, max-requests: 1}
    - {tenant: one, concurrency: 1}
    - {tenant: paced, sends-per-second: 1}
`)
	return b.String()
}

// TestRefusals shows every refusal to the clients people use, unmodified: what they make
// of it, whether and when they come back.
func TestRefusals(t *testing.T) {
	python, node := filepath.Join(cache, "vllm/venv/bin/python"), filepath.Join(cache, "node/node_modules")
	for _, c := range []struct {
		name    string
		command func(url, engine string) []string
	}{
		{"openai-python", func(url, engine string) []string {
			return []string{python, here(t, "clients/refusals.py"), "openai", url, engine}
		}},
		{"langchain-python", func(url, engine string) []string {
			return []string{filepath.Join(cache, "langchain/bin/python"), here(t, "clients/refusals.py"), "langchain", url, engine}
		}},
		{"openai-node", func(url, engine string) []string {
			return []string{"node", here(t, "clients/refusals.mjs"), "openai", url, engine, node}
		}},
		{"langchain-node", func(url, engine string) []string {
			return []string{"node", here(t, "clients/refusals.mjs"), "langchain", url, engine, node}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(file, []byte(refusing()), 0o600); err != nil {
				t.Fatal(err)
			}
			url, pid := simulated(t)
			p := startOn(t, url, "--policy", file)
			command := c.command(p.url, fmt.Sprint(pid))
			run(t, nil, command[0], command[1:]...)
		})
	}
}

// simulated starts a simulated engine as a process of its own.
func simulated(t *testing.T) (url string, pid int) {
	t.Helper()
	address := freeAddr(t)
	cmd := exec.Command(binary, "sim", "engine", "--listen", address)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the client may have
		_ = cmd.Wait()
	})
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		ready <- line
	}()
	select {
	case line := <-ready:
		if !strings.HasPrefix(line, "READY") {
			t.Fatalf("the simulated engine said %q", line)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the simulated engine is not ready after 20 s")
	}
	return "http://" + address, cmd.Process.Pid
}
