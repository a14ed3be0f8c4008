//go:build e2e

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestTenants: one tenant sends ten times as much as each of three others, twice what
// the engine can do in all. Nobody is named in any configuration, and the three hardly
// notice. About a minute; scripts/overload tenants runs it.
func TestTenants(t *testing.T) {
	o := options{
		model: "tiny", trace: "../../sim/traces/azure_llm_2023_conv.csv", divide: 4, longer: 4, bytesPerToken: 1, rate: 1.5, times: 10, seed: 1,
		warm: 5 * time.Second, span: 25 * time.Second, tail: 10 * time.Second, patience: 10 * time.Second, giveUp: 10 * time.Second, retries: 3,
	}
	o.url = behind(t, os.Getenv("E2E_BINARY"), os.Getenv("E2E_ENGINE"))
	shapes, err := o.shapes()
	if err != nil {
		t.Fatal(err)
	}
	by, well, err := o.together(t.Context(), shapes)
	if err != nil {
		t.Fatal(err)
	}
	for _, tenant := range tenants {
		s := by[tenant]
		t.Logf("%s: %d sent, %.3f good, TTFT p50 %v p99 %v, %s", tenant, s.Requests, share(s), s.TTFTp50, s.TTFTp99, note(s))
	}
	if got := share(well); got < 0.9 { // 0.97 where the machine does nothing else
		t.Errorf("%.3f of the requests of those who behave are good, want at least 0.9", got)
	}
}

// behind starts penstock with the tenants' keys and gives its address.
func behind(t *testing.T, binary, engine string) string {
	t.Helper()
	if binary == "" || engine == "" {
		t.Fatal("E2E_BINARY and E2E_ENGINE must be set: see scripts/overload")
	}
	lines := ""
	for _, tenant := range tenants {
		lines += fmt.Sprintf("%s: %s\n", tenant, key(tenant))
	}
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(keys, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "standalone", "--engine", engine, "--api-keys", keys,
		"--listen", address, "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-level", "error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for begun := time.Now(); time.Since(begun) < 20*time.Second; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/health")
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return "http://" + address
		}
	}
	t.Fatal("penstock is not ready after 20 s")
	return ""
}
