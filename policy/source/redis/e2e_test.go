//go:build e2e

package redis

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"penstock/policy/source/sourcetest"
)

// realKey is a key of its own on the Redis at E2E_REDIS.
func realKey(t *testing.T) (*Key, *goredis.Client) {
	addr := os.Getenv("E2E_REDIS")
	if addr == "" {
		t.Fatal("E2E_REDIS is not set: start one with scripts/redis start and give host:port")
	}
	k := newKey(t, addr, DefaultKey+rand.Text())
	raw := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2})
	t.Cleanup(func() { raw.Del(context.Background(), k.cfg.Key); _ = raw.Close() })
	return k, raw
}

func TestRealConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Stage {
		k, raw := realKey(t)
		ctx := context.Background()
		say := func(err error) {
			if err == nil {
				err = raw.Publish(ctx, k.cfg.Key, "changed").Err()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return sourcetest.Stage{
			Place:  k,
			Write:  func(text string) { say(raw.Set(ctx, k.cfg.Key, text, 0).Err()) },
			Remove: func() { say(raw.Del(ctx, k.cfg.Key).Err()) },
		}
	})
}

// TestRealReplaceSecure: over TLS, as the user that scripts/redis makes, who may do what
// penstock needs.
func TestRealReplaceSecure(t *testing.T) {
	addr, dir := os.Getenv("E2E_REDIS_TLS"), os.Getenv("E2E_REDIS_SECURE")
	if addr == "" || dir == "" {
		t.Fatal("E2E_REDIS_TLS and E2E_REDIS_SECURE are not set to HOST:PORT and data directory of a Redis started with REDIS_SECURE=1; run scripts/e2e")
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	password, err := os.ReadFile(filepath.Join(dir, "penstock"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Addr: addr, Username: "penstock", Password: strings.TrimSpace(string(password)), Key: DefaultKey + rand.Text(), TLS: &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}}
	cfg.TLS.RootCAs.AppendCertsFromPEM(pem)
	k, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	raw := goredis.NewClient(&goredis.Options{Addr: addr, Username: cfg.Username, Password: cfg.Password, TLSConfig: cfg.TLS, Protocol: 2})
	defer k.client.Del(context.Background(), cfg.Key)
	replaces(t, k, raw)
}

func TestRealReplace(t *testing.T) {
	k, _ := realKey(t)
	replaces(t, k, goredis.NewClient(&goredis.Options{Addr: k.cfg.Addr, Protocol: 2}))
}
