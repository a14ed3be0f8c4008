//go:build e2e

// Package e2e runs the built binary in front of a real vLLM. scripts/e2e starts
// the engine and sets E2E_ENGINE, E2E_ENGINE_PID, E2E_BINARY and E2E_CACHE;
// without them the tests fail, they do not skip.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

var engine, binary, cache string

func TestMain(m *testing.M) {
	for name, value := range map[string]*string{"E2E_ENGINE": &engine, "E2E_BINARY": &binary, "E2E_CACHE": &cache} {
		if *value = os.Getenv(name); *value == "" {
			fmt.Fprintf(os.Stderr, "e2e: %s is not set; run scripts/e2e\n", name)
			os.Exit(1)
		}
	}
	code := m.Run()
	served, err := metric(engine, "vllm:request_success_total")
	version, _ := get(engine + "/version")
	fmt.Printf("component: vLLM %s pid %s, requests finished: %.0f\n", strings.TrimSpace(version), os.Getenv("E2E_ENGINE_PID"), served)
	if err != nil || served == 0 {
		fmt.Fprintf(os.Stderr, "e2e: the real engine finished no request (%v)\n", err)
		code = 1
	}
	os.Exit(code)
}

// penstock is a running binary.
type penstock struct {
	url, admin, grpc string
	cmd              *exec.Cmd
	log              *bytes.Buffer
}

// start runs "penstock standalone" in front of the engine and waits until it says READY.
func start(t *testing.T, args ...string) *penstock {
	t.Helper()
	return startOn(t, engine, args...)
}

// startOn is start in front of another engine.
func startOn(t *testing.T, engine string, args ...string) *penstock {
	t.Helper()
	p := &penstock{url: "http://" + freeAddr(t), admin: "http://" + freeAddr(t), grpc: freeAddr(t), log: new(bytes.Buffer)}
	all := []string{
		"standalone", "--listen", strings.TrimPrefix(p.url, "http://"), "--admin", strings.TrimPrefix(p.admin, "http://"),
		"--grpc", p.grpc, "--engine", engine,
	}
	p.cmd = exec.Command(binary, append(all, args...)...)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "READY") {
				ready <- true
			}
		}
		close(ready)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("penstock did not end with 0: %v\n%s", err, p.log)
		}
	})
	select {
	case ok := <-ready:
		if !ok {
			t.Fatalf("penstock ended before READY:\n%s", p.log)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no READY after 20 s:\n%s", p.log)
	}
	fmt.Printf("component: penstock pid %d for %s\n", p.cmd.Process.Pid, t.Name())
	return p
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func get(url string) (string, error) {
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// metric sums the series of one name on a /metrics page.
func metric(base, name string) (float64, error) {
	page, err := get(base + "/metrics")
	if err != nil {
		return 0, err
	}
	found, sum := false, 0.0
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err == nil {
			found, sum = true, sum+v
		}
	}
	if !found {
		return 0, fmt.Errorf("no %s on %s/metrics", name, base)
	}
	return sum, nil
}

// eventually polls until what holds or the deadline passes.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !holds() {
		if time.Since(begin) > within {
			t.Fatalf("after %v still not: %s", within, what)
		}
		time.Sleep(3 * time.Millisecond)
	}
	return time.Since(begin)
}

type answer struct {
	status int
	header http.Header
	text   string
	finish string
	usage  map[string]float64
	events int
	raw    []byte
}

// post sends body and reads the answer, plain or SSE.
func post(ctx context.Context, url, body string) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	if a.raw, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	docs := [][]byte{a.raw}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		docs = nil
		for line := range bytes.Lines(a.raw) {
			if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok && string(data) != "[DONE]" {
				docs = append(docs, data)
			}
		}
	}
	for _, doc := range docs {
		a.events++
		if err := a.add(doc); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *answer) add(doc []byte) error {
	var d struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
			Delta   struct{ Content string }
			Finish  string `json:"finish_reason"`
		}
		Usage map[string]any
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return fmt.Errorf("%w in %s", err, doc)
	}
	for _, c := range d.Choices {
		a.text += c.Text + c.Message.Content + c.Delta.Content
		if c.Finish != "" {
			a.finish = c.Finish
		}
	}
	for _, name := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
		if v, ok := d.Usage[name].(float64); ok {
			if a.usage == nil {
				a.usage = map[string]float64{}
			}
			a.usage[name] = v
		}
	}
	return nil
}
