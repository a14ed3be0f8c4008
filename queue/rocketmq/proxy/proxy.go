// Package proxy is the fleet's side of a RocketMQ proxy: consumers and producers of the
// Go client library, mended on the wire, and the questions whose answers say what is
// wrong. No other package imports the library; DESIGN.md says what of it is not
// trusted and what stands in for it.
package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// Lease is how long a delivery is ours without a word. A killed agent's heads
	// come again after it; longer runs renew it.
	Lease = 15 * time.Second
	// renewEvery leaves two more tries before a lease is over.
	renewEvery = 5 * time.Second
	// MaxBody is 64 KiB below the broker's maxMessageSize of 4 MiB: properties and
	// names count as well.
	MaxBody = 4<<20 - 64<<10
	// maxPause is the longest wait between two tries of a connection, a poll or a renewal.
	maxPause = time.Second
	// startWithin bounds one start of a client; with a proxy it takes a good second.
	startWithin = 10 * time.Second
	// stopWithin bounds each of: unsubscribing, pending acknowledgements, the
	// library's own stop.
	stopWithin = 3 * time.Second
	// silence is how long the proxy may say nothing (heartbeats are every 10 s), and a
	// long poll (20 s) may take, before the client is replaced.
	silence = 45 * time.Second
)

// Config is where the proxy is and who asks. One process talks to one cluster: the
// CAFile of the last client counts for all connections.
type Config struct {
	Endpoint string // HOST:PORT of the proxy's gRPC face
	Topic    string // parent topic, of type LITE
	Group    string // consumer group of the agents

	AccessKey, SecretKey string // both or none
	CAFile               string // verifies the proxy's certificate; "" = no TLS, "system" = the system's roots
}

// DefaultConfig returns the names of the tested set-up in deploy/rocketmq.
func DefaultConfig() Config {
	return Config{Endpoint: "127.0.0.1:8081", Topic: "penstock", Group: "penstock-agents"}
}

// Validate names the first field that cannot work, its value and what to put there.
func (c *Config) Validate() error {
	if host, port, err := net.SplitHostPort(c.Endpoint); err != nil || host == "" || port == "" {
		return fmt.Errorf("rocketmq: Endpoint %q: give HOST:PORT of the proxy's gRPC port, usually 8081", c.Endpoint)
	}
	for _, f := range []struct{ name, value string }{{"Topic", c.Topic}, {"Group", c.Group}} {
		if f.value == "" || len(f.value) > 127 {
			return fmt.Errorf("rocketmq: %s %q: give a name of 1 to 127 characters", f.name, f.value)
		}
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return errors.New("rocketmq: AccessKey and SecretKey: give both or none")
	}
	_, err := c.transport()
	return err
}

func (c *Config) transport() (credentials.TransportCredentials, error) {
	switch c.CAFile {
	case "":
		return insecure.NewCredentials(), nil
	case "system":
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("rocketmq: CAFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("rocketmq: CAFile %q: holds no certificate in PEM form", c.CAFile)
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}), nil
}

// LogTo sends the library's warnings to log, the process's: the last call counts.
func LogTo(log *slog.Logger) { sdkLog.log.Store(log) }

// started runs the library's start, which has no end of its own when the proxy is
// silent: the end of the session fails it.
func started(s *session, start func() error) error {
	limit := time.AfterFunc(startWithin, s.end)
	err := start()
	if !limit.Stop() && err == nil {
		err = errors.New("the client's start took too long")
	}
	if err != nil {
		s.leave()
	}
	return err
}

// within runs f and waits at most d for it.
func within(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
