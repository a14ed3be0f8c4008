package direct

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// Files are a client's PEM files.
type Files struct {
	CA        string // whose servers are trusted; "system" = the system's
	Cert, Key string // what the client shows; "" = nothing
}

// Validate names the field and what to set instead.
func (f Files) Validate() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return fmt.Errorf("certificate %q and key %q: give both or neither", f.Cert, f.Key)
	case f.CA == "" && f.Cert != "":
		return fmt.Errorf("certificate %q without an authority: say whose servers may see it", f.Cert)
	}
	return nil
}

// Config reads the files.
func (f Files) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	if f.CA != "system" {
		authority, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("authority: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("authority %s holds no certificate in PEM", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s, key %s: %w", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// renewed reads the files at every handshake: agents ask for a new connection every
// half hour, so that new certificates need no restart.
type renewed struct {
	credentials.TransportCredentials
	files Files
}

func newRenewed(files Files) (credentials.TransportCredentials, error) {
	c, err := files.Config()
	if err != nil {
		return nil, err
	}
	return &renewed{credentials.NewTLS(c), files}, nil
}

func (r *renewed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := r.files.Config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(c).ClientHandshake(ctx, authority, conn)
}

func (r *renewed) Clone() credentials.TransportCredentials {
	return &renewed{r.TransportCredentials.Clone(), r.files}
}
