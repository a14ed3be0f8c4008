// Package redisconn opens connections to the Redis of a fleet, for all that keep
// something there: how one is opened (Server), how often a Redis that is away is tried
// (Link), and what to do about its errors (Fix).
package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Server says which Redis, and as whom.
type Server struct {
	Addr         string // host:port of the primary, or redis://… or rediss://… with user, password and database
	Username     string
	Password     string
	PasswordFile string // instead of Password; read for each connection, so that it can be changed
	DB           int
	TLS          *tls.Config // nil = plain TCP, unless Addr or CAFile says otherwise
	CAFile       string      // PEM; TLS with this authority. TLS with the system's: a rediss:// address
}

// Options are go-redis's, without any of its own patience: every call's context bounds
// it, and a dial is one dial. Pool and timeouts are left to whoever calls. An error
// names the field.
func (s Server) Options() (*goredis.Options, error) {
	o := &goredis.Options{Addr: s.Addr}
	if strings.Contains(s.Addr, "://") {
		parsed, err := goredis.ParseURL(s.Addr)
		if err != nil {
			return nil, fmt.Errorf("Addr: %w", err) //nolint:staticcheck // begins with the field
		}
		o = parsed
	}
	if s.Username != "" {
		o.Username = s.Username
	}
	if s.Password != "" {
		o.Password = s.Password
	}
	if s.DB != 0 {
		o.DB = s.DB
	}
	if s.TLS != nil {
		o.TLSConfig = s.TLS.Clone()
	}
	if s.PasswordFile != "" {
		if s.Password != "" {
			return nil, errors.New("Password and PasswordFile are both set; leave one") //nolint:staticcheck // begins with the fields
		}
		user := o.Username
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			text, err := os.ReadFile(s.PasswordFile)
			return user, strings.TrimRight(string(text), "\r\n"), err
		}
	}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CAFile: %w", err)
		}
		if o.TLSConfig == nil {
			host, _, _ := strings.Cut(o.Addr, ":")
			o.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
		}
		o.TLSConfig.RootCAs = x509.NewCertPool()
		if !o.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CAFile: no certificate in %s", s.CAFile)
		}
	}
	o.Protocol, o.DisableIdentity = 2, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1
	o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, time.Millisecond
	return o, nil
}
