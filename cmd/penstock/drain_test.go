package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/penstock/flags"
	"penstock/vllm/vllmtest"
)

// TestDrain ends penstock under open requests: with grace enough they finish, else
// they are told; the gateway goes first, then the agents.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		grace  time.Duration
		whole  bool
		within time.Duration // of the end
	}{
		{"within grace", 10 * time.Second, true, 4 * time.Second},
		{"past grace", 200 * time.Millisecond, false, 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond))
			p := startProcess(t, func(o *flags.Options) { o.Grace = tc.grace }, e.URL())
			if r := p.post(completion(20, 4, "")); r.status != 200 {
				t.Fatalf("before: %v", r)
			}
			open := p.open(completion(20, 400, streamed))
			plain := p.background(completion(20, 400, ""))
			p.until("two run", func() bool { return p.metric("penstock_inflight_requests") == 2 })
			p.stop()
			at := time.Now()
			if tc.whole {
				p.until("not ready", func() bool { return strings.Contains(p.readyz(), "draining") && !p.serving() })
				if r := p.post(completion(20, 4, "")); !r.refused() || r.status != 503 || r.reason() != "draining" {
					p.bound("a new request: %v; want 503 draining", r)
				}
			}
			events, err := open.rest()
			if err != nil || len(events) < 2 || events[len(events)-1] != "[DONE]" {
				t.Fatalf("stream: %d events, error %v; want [DONE] at the end", len(events), err)
			}
			last := events[len(events)-2]
			if tc.whole == strings.Contains(last, `"code":"draining"`) || tc.whole == strings.Contains(last, `"error"`) {
				t.Errorf("stream: last event %q; an error that says draining: want %v", last, !tc.whole)
			}
			if r := <-plain; tc.whole && r.status != 200 || !tc.whole && (!r.refused() || r.reason() != "draining") {
				p.bound("plain request: %v; whole: want %v", r, tc.whole)
			}
			<-p.ended
			took := time.Since(at)
			if p.err != nil || took > tc.within {
				p.bound("Run returned %v after %v; want nil within %v", p.err, took, tc.within)
			}
			e.WaitFor("nothing left in the engine", func() bool { return e.InFlight() == 0 })
			p.checkOrder(`msg="gateway drains"`, "msg=draining ", "msg=drained ")
			t.Logf("ended %v after SIGTERM", took.Round(time.Millisecond))
		})
	}
}

// checkOrder holds that log lines with these texts came in this order.
func (p *process) checkOrder(texts ...string) {
	p.t.Helper()
	rest := p.log.all()
	for _, text := range texts {
		i := 0
		for i < len(rest) && !strings.Contains(rest[i], text) {
			i++
		}
		if i == len(rest) {
			p.t.Errorf("log: no %q in its place", text)
			return
		}
		rest = rest[i+1:]
	}
}

// TestSIGTERM runs the real command and ends it by the signal.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args = []string{"penstock", "standalone", "--engine", e.URL(), "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(waitLimit, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "READY") {
		t.Errorf("first line %q, want READY…", lines.Text())
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for lines.Scan() { // to its end, as Wait wants
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(log.String(), "msg=drained") {
		t.Errorf("ended with %v, want exit 0 after a drain; log:\n%s", err, log.String())
	}
}
