package rocketmq

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"penstock/queue/rocketmq/proxy/proxytest"
)

// selfSigned is a certificate for 127.0.0.1 and the file of it for CAFile.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// TestTLS is not parallel: the transport is the process's.
func TestTLS(t *testing.T) {
	cert, file := selfSigned(t)
	_, other := selfSigned(t)
	p := proxytest.New(t, proxytest.Faults{}, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	t.Run("a certificate of another issuer", func(t *testing.T) {
		f := newFleet(t, p.Addr, func(c *Config) { c.CAFile = other })
		eventually(t, "the reason in readiness", func() bool {
			_, why := f.producer.Ready()
			return strings.Contains(why, "broker away")
		})
	})
	t.Run("the right one", func(t *testing.T) {
		f := newFleet(t, p.Addr, func(c *Config) { c.CAFile = file })
		f.send(t, "a")
	})
}
