package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		s            Server
		addr         string
		user, secret string
		db           int
		server       string // TLS to this name; "" = plain
	}{
		"host and port":       {Server{Addr: "h:1"}, "h:1", "", "", 0, ""},
		"fields":              {Server{Addr: "h:1", Username: "u", Password: "p", DB: 2, TLS: &tls.Config{ServerName: "n"}}, "h:1", "u", "p", 2, "n"},
		"an address":          {Server{Addr: "rediss://u:p@h:1/3"}, "h:1", "u", "p", 3, "h"},
		"fields over address": {Server{Addr: "redis://u:p@h:1/3", Username: "v", Password: "q", DB: 4}, "h:1", "v", "q", 4, ""},
		"a password file":     {Server{Addr: "redis://u@h:1", PasswordFile: file}, "h:1", "u", "secret", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := tc.s.Options()
			if err != nil {
				t.Fatal(err)
			}
			user, secret := o.Username, o.Password
			if o.CredentialsProviderContext != nil {
				if user, secret, err = o.CredentialsProviderContext(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			server := ""
			if o.TLSConfig != nil {
				server = o.TLSConfig.ServerName
			}
			if o.Addr != tc.addr || user != tc.user || secret != tc.secret || o.DB != tc.db || server != tc.server {
				t.Errorf("%s as %q %q in %d, TLS %q; want %+v", o.Addr, user, secret, o.DB, server, tc)
			}
			if o.Protocol != 2 || o.DialerRetries != 1 || !o.ContextTimeoutEnabled {
				t.Errorf("options %+v, want RESP2, one dial and the context's deadlines", o)
			}
		})
	}
}

func TestOptionsNameTheField(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]Server{
		"Addr: ": {Addr: "http://x"},
		"Password and PasswordFile are both set; leave one": {Addr: "h:1", Password: "p", PasswordFile: "f"},
		"CAFile: open ":              {Addr: "h:1", CAFile: empty + "/none"},
		"CAFile: no certificate in ": {Addr: "h:1", CAFile: empty},
	} {
		if _, err := s.Options(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

func TestFix(t *testing.T) {
	for text, want := range map[string]string{
		"WRONGPASS invalid":    "--redis-password-file",
		"NOPERM this user":     "+@scripting",
		"x509: unknown issuer": "--redis-ca-file",
		"READONLY you can't":   "the primary",
		"connection reset":     "rediss://HOST:PORT",
		"something of its own": "",
	} {
		err := told{errors.New(text)}
		if got := Fix(err); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("Fix(%s) = %q, want %q", text, got, want)
		}
		if got := WithFix(err); !strings.HasPrefix(got, text) || want == "" && got != text {
			t.Errorf("WithFix(%s) = %q", text, got)
		}
	}
	if Fix(nil) != "" || !strings.Contains(Fix(context.DeadlineExceeded), "in time") || !strings.Contains(Fix(io.EOF), "hangs up") {
		t.Errorf("Fix(nil) = %q, of a deadline %q, of EOF %q", Fix(nil), Fix(context.DeadlineExceeded), Fix(io.EOF))
	}
}
