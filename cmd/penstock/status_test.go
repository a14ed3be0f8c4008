package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/agent/control"
	penstockv1 "penstock/proto/penstock/v1"
	"penstock/vllm/vllmtest"
)

func TestVerdict(t *testing.T) {
	engine := func(node, condition, gate, why string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Node: node, Condition: condition, Gate: gate, Why: why}
	}
	open := engine("o", "ok", "ok", "")
	for _, tc := range []struct {
		name    string
		engines []*penstockv1.EngineState
		want    string
		code    int
	}{
		{"none", nil, "no engine is known", exitOK},
		{"one open", []*penstockv1.EngineState{open}, "the engine is open", exitOK},
		{"busy is open", []*penstockv1.EngineState{open, engine("a", "ok", "kv_band", "kv 85 % >= 80 %")}, "all 2 engines are open", exitOK},
		{"full is healthy", []*penstockv1.EngineState{open, engine("n7", "ok", "kv_high", "kv 94 % >= 92 %")}, "1 of 2 engines closed: n7 kv 94 % >= 92 %", exitOK},
		{"the only one", []*penstockv1.EngineState{engine("n1", "starting", "starting", "")}, "1 of 1 engine closed: n1 starting", exitOK},
		{"the worst first", []*penstockv1.EngineState{
			open, engine("n7", "stale", "kv_high", "kv 94 % >= 92 %"), engine("n8", "draining", "draining", "draining 3 s"),
			engine("n9", "blind", "blind", "blind 12 s: connection refused"), engine("n2", "gone", "gone", "gone: not heard of for 30 s"),
		}, "4 of 5 engines closed: n2 gone: not heard of for 30 s, n9 blind 12 s: connection refused, n8 draining 3 s, and 1 more", exitUnhealthy},
		{"stuck", []*penstockv1.EngineState{engine("a", "stuck", "stuck", "stuck 9 s")}, "1 of 1 engine closed: a stuck 9 s", exitUnhealthy},
		{"down", []*penstockv1.EngineState{engine("a", "engine_down", "engine_down", "")}, "1 of 1 engine closed: a engine_down", exitUnhealthy},
		{"a GPU gone", []*penstockv1.EngineState{engine("a", "ok", "gpu_lost", "gpu_lost")}, "1 of 1 engine closed: a gpu_lost", exitUnhealthy},
		{"a condition of tomorrow", []*penstockv1.EngineState{engine("a", "melting", "", "")}, "1 of 1 engine closed: a melting", exitOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, output := range []string{"text", "json"} {
				var out bytes.Buffer
				err := writeStatus(&out, &penstockv1.ClusterResponse{Engines: tc.engines, Problem: "store away"}, output)
				code := exitOK
				if exit, is := err.(*exitError); is { //nolint:errorlint // not wrapped
					code = exit.code
				}
				if first, _, _ := strings.Cut(out.String(), "\n"); code != tc.code || output == "text" && first != tc.want || !strings.Contains(out.String(), "store away") {
					t.Errorf("%s: got %q, code %d; want %q, %d", output, out.String(), code, tc.want, tc.code)
				}
			}
		})
	}
}

func TestAgo(t *testing.T) {
	for seconds, want := range map[float64]string{0: "-", 0.0521: "52ms", 1.26: "1.3s", 12.4: "12s", 90: "1m30s"} {
		if got := ago(seconds); got != want {
			t.Errorf("ago(%v) = %q, want %q", seconds, got, want)
		}
	}
}

// TestStatusOfFaults: what the commands say of a process under load and faults.
func TestStatusOfFaults(t *testing.T) {
	t.Parallel()
	e, other := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond)), vllmtest.Start(t)
	p := startProcess(t, nil, e.URL(), other.URL())
	penstock := func(args ...string) (code int, out, problem string) {
		var stdout, stderr bytes.Buffer
		code = run(append(args, "--grpc", p.grpcListener.Addr().String()), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	p.until("both open", func() bool {
		_, out, _ := penstock("status")
		return strings.HasPrefix(out, "all 2 engines are open\n")
	})

	other.Stop()
	p.until("blind", func() bool {
		code, out, problem := penstock("status")
		return code == exitUnhealthy && strings.HasPrefix(out, "1 of 2 engines closed: "+p.nodes[1]+" blind ") &&
			strings.Contains(out, "connection refused") && strings.Contains(problem, "1 engine is blind, stuck, down or gone")
	})

	open := p.open(completion(20, 900, streamed))
	drained := make(chan string, 1)
	go func() {
		code, out, problem := penstock("drain", p.nodes[0])
		drained <- strings.Repeat("failed: ", min(code, 1)) + problem + out
	}()
	p.until("draining", func() bool { _, out, _ := penstock("status"); return strings.Contains(out, p.nodes[0]+" draining") })
	if r := p.post(completion(20, 4, "")); r.status != 503 {
		t.Errorf("a request while all is closed: %v, want 503", r)
	}
	select {
	case text := <-drained:
		t.Errorf("drain ended while a request runs: %s", text)
	default:
	}
	if events, err := open.rest(); err != nil || events[len(events)-1] != "[DONE]" {
		t.Errorf("the open stream: %d events, %v; want it whole", len(events), err)
	}
	if text := <-drained; !strings.Contains(text, "1 request in flight") || !strings.Contains(text, "is drained after") || strings.HasPrefix(text, "failed") {
		t.Errorf("drain said %q, want its progress and the end", text)
	}
	if code, _, problem := penstock("resume", p.nodes[0]); code != exitOK {
		t.Errorf("resume: %s", problem)
	}
	p.until("served again", func() bool { return p.post(completion(20, 4, "")).status == 200 })

	id := ""
	for _, line := range p.log.all() {
		if _, rest, ok := strings.Cut(line, "request finished\" id="); ok && strings.Contains(line, "outcome=ok") {
			id, _, _ = strings.Cut(rest, " ")
		}
	}
	if code, out, problem := penstock("status", "request", id); code != exitOK || !strings.Contains(out, id+" is finished on "+p.nodes[0]) {
		t.Errorf("status request %s: code %d, %q %q; want it finished", id, code, out, problem)
	}
	if code, out, problem := penstock("status", "lanes"); code != exitOK || !strings.Contains(out, "default") || !strings.Contains(out, "tiny") {
		t.Errorf("status lanes: code %d, %q %q; want the model's lane", code, out, problem)
	}
}

// TestStatusOverTLS: flags of both sides, with one certificate that signs itself.
func TestStatusOverTLS(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, kind string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, keyFile := file("cert.pem", "CERTIFICATE", der), file("key.pem", "PRIVATE KEY", private)
	p := startProcess(t, func(o *options) { o.grpcKeys = control.Config{Cert: cert, Key: keyFile, ClientCA: cert} }, vllmtest.Start(t).URL())
	for _, with := range [][]string{nil, {"--ca", cert}, {"--ca", cert, "--cert", cert, "--key", keyFile}} {
		var out, problem bytes.Buffer
		args := append([]string{"status", "--grpc", p.grpcListener.Addr().String()}, with...)
		if code := run(args, &out, &problem); code != exitOK || !strings.HasPrefix(out.String(), "the engine is open\n") {
			t.Errorf("%v: code %d, %q %q; want the engine open", args, code, out.String(), problem.String())
		}
	}
	var out, problem bytes.Buffer
	if code := run([]string{"status", "--grpc", p.grpcListener.Addr().String(), "--ca", "system"}, &out, &problem); code != exitUnreachable || !strings.Contains(problem.String(), "unknown authority") {
		t.Errorf("another authority: code %d, %q; want that it is unknown", code, problem.String())
	}
}
