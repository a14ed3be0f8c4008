//go:build e2e

package fleet

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCause: an engine dies and then its agent; the gateway's 503 and another agent's
// status say why it takes no work, and for how long.
func TestCause(t *testing.T) {
	f := the(t)
	says := func(want string) {
		t.Helper()
		pattern, text := regexp.MustCompile(want), ""
		took := eventually(t, 25*time.Second, func() string {
			a := ask{model: beta, prompt: "why", tokens: 1}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.gateways[0].url+"/v1/chat/completions", strings.NewReader(a.body(beta)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key(0))
			req.Header.Set("X-Penstock-Start-Timeout-Ms", "200")
			resp, err := client.Do(req)
			if err != nil {
				return err.Error()
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if text = string(body); err != nil || resp.StatusCode != http.StatusServiceUnavailable || !pattern.MatchString(text) {
				return text
			}
			return ""
		})
		t.Logf("after %v: %s", took.Round(time.Millisecond), strings.TrimSpace(text))
	}
	status := func(want string) {
		t.Helper()
		eventually(t, 15*time.Second, func() string {
			out, _ := exec.Command(binary, "status", "--grpc", addr(20)).CombinedOutput() // its exit code says that an engine is not well
			if regexp.MustCompile(want).Match(out) {
				return ""
			}
			return fmt.Sprintf("status of another agent:\n%s\nwant %s", out, want)
		})
	}
	if err := f.engines[2].end(syscall.SIGKILL, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	says(`No engine for model 'beta' takes work now \(1 known, blind \d+ s: connection refused\)`)
	status(`node2 blind \d+ s: connection refused`)
	if err := f.agents[2].end(syscall.SIGKILL, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	says(`No engine for model 'beta' is reachable \(1 known, last seen 1\d s ago: blind \d+ s: connection refused\)`)
	status(`node2 gone: not heard of for 1\d s`)
	for _, p := range []*part{f.engines[2], f.agents[2]} {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
	}
}
