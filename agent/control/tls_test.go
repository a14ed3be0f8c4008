package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	mathbig "math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	life time.Duration // of what it signs
}

func newAuthority(t *testing.T, name string) *authority { return newAuthorityFor(t, name, time.Hour) }

func newAuthorityFor(t *testing.T, name string, life time.Duration) *authority {
	a := &authority{t: t, life: life}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	der := a.sign(&x509.Certificate{
		SerialNumber: mathbig.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}, &a.key.PublicKey)
	a.cert, err = x509.ParseCertificate(der)
	check(t, err)
	return a
}

func (a *authority) sign(c *x509.Certificate, key *ecdsa.PublicKey) []byte {
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(a.life)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, a.key)
	check(a.t, err)
	return der
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// leaf is a certificate and its key, for server and client.
func (a *authority) leaf(name string) (cert, key []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(a.t, err)
	der := a.sign(&x509.Certificate{
		SerialNumber: mathbig.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{"penstock"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, &private.PublicKey)
	bytes, err := x509.MarshalPKCS8PrivateKey(private)
	check(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes})
}

// client trusts a, and shows a certificate of each of shown.
func (a *authority) client(shown ...*authority) credentials.TransportCredentials {
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "penstock", MinVersion: tls.VersionTLS13}
	c.RootCAs.AddCert(a.cert)
	for _, by := range shown {
		pair, err := tls.X509KeyPair(by.leaf("client"))
		check(a.t, err)
		// Shown whatever authorities the server names.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return credentials.NewTLS(c)
}

func write(t *testing.T, path string, content []byte, at time.Time) {
	t.Helper()
	check(t, os.WriteFile(path, content, 0o600))
	check(t, os.Chtimes(path, at, at))
}

// TestGRPCCertificates: TLS and plain text on one port, clients with the wrong
// certificate are refused, new files are used without a restart and bad ones not.
func TestGRPCCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca")}
	servers, clients, stranger := newAuthority(t, "servers"), newAuthority(t, "clients"), newAuthority(t, "stranger")
	begin := time.Now().Add(-time.Minute)
	renew := func(by *authority, at time.Time) {
		cert, key := by.leaf("agent")
		write(t, cfg.Cert, cert, at)
		write(t, cfg.Key, key, at)
	}
	renew(servers, begin)
	write(t, cfg.ClientCA, clients.pem(), begin)
	d := serve(t, cfg, newFake("node-1"))
	ask := func(creds ...credentials.TransportCredentials) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := penstockv1.NewAgentServiceClient(d.dial(creds...)).Resume(ctx, &penstockv1.ResumeRequest{})
		return err
	}
	expect := func(step string, want codes.Code, text string, creds ...credentials.TransportCredentials) {
		t.Helper()
		if err := ask(creds...); status.Code(err) != want || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want %v %q", step, err, want, text)
		}
	}
	expect("plain text", codes.OK, "")
	expect("TLS without certificate", codes.OK, "", servers.client())
	expect("mTLS", codes.OK, "", servers.client(clients))
	expect("client of a stranger", codes.Unavailable, "", servers.client(stranger))
	expect("server of a stranger", codes.Unavailable, "unknown authority", stranger.client())

	renew(stranger, begin.Add(time.Second))
	expect("new certificate", codes.OK, "", stranger.client(clients))
	expect("old authority", codes.Unavailable, "unknown authority", servers.client(clients))
	write(t, cfg.Cert, []byte("half a file"), begin.Add(2*time.Second))
	expect("bad file", codes.OK, "", stranger.client(clients))
	if !strings.Contains(d.logs.String(), "the old ones stay") {
		t.Error("a bad file is not logged")
	}
	renew(servers, begin.Add(3*time.Second))
	write(t, cfg.ClientCA, stranger.pem(), begin.Add(3*time.Second))
	expect("new client authority", codes.OK, "", servers.client(stranger))
	expect("old client", codes.Unavailable, "", servers.client(clients))
}

func TestConfigNamesTheFix(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "cert.pem")
	for want, cfg := range map[string]Config{
		"set both or neither": {Cert: "c"},
		"set Cert and Key":    {ClientCA: "ca"},
		"no such file":        {Cert: missing, Key: missing},
	} {
		_, err := New(cfg, Deps{})
		if cfg.Cert == missing {
			_, err = newKeyFiles(cfg, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", cfg, err, want)
		}
	}
}

// TestAllow: orders from other hosts need a verified certificate, reading does not.
func TestAllow(t *testing.T) {
	shown := credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}}
	for _, tc := range []struct {
		name, addr string
		auth       credentials.AuthInfo
		method     string
		want       codes.Code
	}{
		{"state from afar", "10.0.0.1", nil, penstockv1.AgentService_GetState_FullMethodName, codes.OK},
		{"load from afar", "10.0.0.1", nil, "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", codes.OK},
		{"drain from afar", "10.0.0.1", nil, penstockv1.AgentService_Drain_FullMethodName, codes.PermissionDenied},
		{"drain from afar, TLS only", "10.0.0.1", credentials.TLSInfo{}, penstockv1.AgentService_Drain_FullMethodName, codes.PermissionDenied},
		{"drain from afar, mTLS", "10.0.0.1", shown, penstockv1.AgentService_Drain_FullMethodName, codes.OK},
		{"abort from here", "127.0.0.1", nil, penstockv1.AgentService_Abort_FullMethodName, codes.OK},
		{"abort from here, IPv6", "::1", nil, penstockv1.AgentService_Abort_FullMethodName, codes.OK},
		{"request from afar", "10.0.0.1", nil, penstockv1.AgentService_GetRequest_FullMethodName, codes.PermissionDenied},
		{"lanes from afar", "10.0.0.1", nil, penstockv1.AgentService_Lanes_FullMethodName, codes.PermissionDenied},
		{"a method of tomorrow", "10.0.0.1", nil, "/penstock.v1.AgentService/New", codes.PermissionDenied},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(tc.addr)}, AuthInfo: tc.auth})
		if got := status.Code(allow(ctx, tc.method)); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
	if err := allow(t.Context(), penstockv1.AgentService_Drain_FullMethodName); status.Code(err) != codes.PermissionDenied {
		t.Errorf("nobody: got %v, want permission denied", err)
	}
}
