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
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/vllm/vllmtest"
)

// TestStatusOfFaults: what the commands say of a process under load and faults.
func TestStatusOfFaults(t *testing.T) {
	t.Parallel()
	e, other := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond)), vllmtest.Start(t)
	p := startProcess(t, nil, e.URL(), other.URL())
	penstock := func(args ...string) (code int, out, problem string) {
		var stdout, stderr bytes.Buffer
		code = run(append(args, "--grpc", p.GRPCAddress()), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	p.until("both open", func() bool {
		_, out, _ := penstock("status")
		return strings.HasPrefix(out, "all 2 engines are open\n")
	})

	other.Stop()
	p.until("blind", func() bool {
		code, out, problem := penstock("status")
		return code == exit.Unhealthy && strings.HasPrefix(out, "1 of 2 engines closed: "+p.Nodes[1]+" blind ") &&
			strings.Contains(out, "connection refused") && strings.Contains(problem, "1 engine is blind, stuck, down or gone")
	})

	open := p.open(completion(20, 900, streamed))
	drained := make(chan string, 1)
	go func() {
		code, out, problem := penstock("drain", p.Nodes[0])
		drained <- strings.Repeat("failed: ", min(code, 1)) + problem + out
	}()
	p.until("draining", func() bool { _, out, _ := penstock("status"); return strings.Contains(out, p.Nodes[0]+" draining") })
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
	if code, _, problem := penstock("resume", p.Nodes[0]); code != exit.OK {
		t.Errorf("resume: %s", problem)
	}
	p.until("served again", func() bool { return p.post(completion(20, 4, "")).status == 200 })

	id := ""
	for _, line := range p.log.all() {
		if _, rest, ok := strings.Cut(line, "request finished\" id="); ok && strings.Contains(line, "outcome=ok") {
			id, _, _ = strings.Cut(rest, " ")
		}
	}
	if code, out, problem := penstock("status", "request", id); code != exit.OK || !strings.Contains(out, id+" is finished on "+p.Nodes[0]) {
		t.Errorf("status request %s: code %d, %q %q; want it finished", id, code, out, problem)
	}
	if code, out, problem := penstock("status", "lanes"); code != exit.OK || !strings.Contains(out, "default") || !strings.Contains(out, "tiny") {
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
	p := startProcess(t, func(o *flags.Options) { o.GRPCKeys = control.Config{Cert: cert, Key: keyFile, ClientCA: cert} }, vllmtest.Start(t).URL())
	for _, with := range [][]string{nil, {"--ca", cert}, {"--ca", cert, "--cert", cert, "--key", keyFile}} {
		var out, problem bytes.Buffer
		args := append([]string{"status", "--grpc", p.GRPCAddress()}, with...)
		if code := run(args, &out, &problem); code != exit.OK || !strings.HasPrefix(out.String(), "the engine is open\n") {
			t.Errorf("%v: code %d, %q %q; want the engine open", args, code, out.String(), problem.String())
		}
	}
	var out, problem bytes.Buffer
	if code := run([]string{"status", "--grpc", p.GRPCAddress(), "--ca", "system"}, &out, &problem); code != exit.Unreachable || !strings.Contains(problem.String(), "unknown authority") {
		t.Errorf("another authority: code %d, %q; want that it is unknown", code, problem.String())
	}
}
