package direct

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) issue(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// files writes the authority and a certificate for whoever reaches it at 0.0.0.0,
// which is this host and not a loopback address.
func (a *authority) files(f Files) Files {
	a.t.Helper()
	cert, key := a.issue(&x509.Certificate{
		IPAddresses: []net.IP{net.IPv4zero}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		f.CA: {Type: "CERTIFICATE", Bytes: a.cert.Raw}, f.Cert: {Type: "CERTIFICATE", Bytes: cert.Raw}, f.Key: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return f
}

func in(dir string) Files {
	return Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
}

// TestCertificates: an agent elsewhere is called with TLS alone, and new files need
// no restart.
func TestCertificates(t *testing.T) {
	ours, strange := newAuthority(t, "ours"), newAuthority(t, "strange")
	server, err := ours.files(in(t.TempDir())).Config()
	if err != nil {
		t.Fatal(err)
	}
	server.ClientCAs, server.ClientAuth = server.RootCAs, tls.RequireAndVerifyClientCert
	address, _ := serve(t, &owner{}, "0.0.0.0:0", credentials.NewTLS(server))
	_, port, _ := net.SplitHostPort(address)
	address = net.JoinHostPort("0.0.0.0", port)
	cfg := DefaultConfig()
	cfg.Within = time.Second // a handshake beside other tests
	cfg.Files = strange.files(in(t.TempDir()))
	a, _ := newAborts(t, cfg)
	a.Abort(address, "runs")
	a.become(t, map[string]float64{failed: 1})
	ours.files(cfg.Files)
	until(t, "the agent is told with the new certificate", func() bool { a.Abort(address, "runs"); return a.seen()[stopped] > 0 })
	if n := a.seen()[noCert]; n != 0 {
		t.Errorf("%v aborts without a certificate, want 0", n)
	}
}
