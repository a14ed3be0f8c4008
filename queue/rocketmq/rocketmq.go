// Package rocketmq keeps the lanes of a fleet on Apache RocketMQ 5.5: every shard of
// a lane is a LiteTopic below one parent topic, agents are one ordered consumer
// group, Suspend is the client library's Suspend. It is the only user of the
// library; DESIGN.md says what of it is not trusted and what stands in for it.
package rocketmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"penstock/lane"
	"penstock/queue"
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
	// maxProperties stays below the broker's 16,384 bytes of user properties, with
	// room for those it adds itself.
	maxProperties = 15 << 10
	// maxPause is the longest wait between two tries of anything.
	maxPause = time.Second
	// stopWithin bounds each of: unsubscribing, pending acknowledgements, the
	// library's own stop.
	stopWithin = 3 * time.Second
	// lanesKept is how long a lane that left the directory stays subscribed: no
	// message of it lives longer (deadlines are capped at 600 s), and a directory
	// that was emptied must not strand what waits.
	lanesKept = 11 * time.Minute
)

// Config is what producers and consumers share. One process talks to one cluster:
// the CAFile of the last New counts for all connections.
type Config struct {
	Endpoint string // HOST:PORT of the proxy's gRPC face
	Topic    string // parent topic, of type LITE
	Group    string // consumer group of the agents
	Secret   []byte // key of lane names, the same in the whole fleet; empty is allowed

	AccessKey, SecretKey string // both or none
	CAFile               string // verifies the proxy's certificate; "" = no TLS, "system" = the system's roots

	// Clock is what the fleet's clock (the record store's) is ahead of ours; nil = 0.
	// Times travel by the fleet's clock.
	Clock func() time.Duration

	PublishTimeout time.Duration // bounds one Publish; the caller's context may be shorter

	// For consumers.
	Concurrency int              // deliveries that run at once, at most
	Node        string           // this agent, for the choice among nodes
	Nodes       func() []string  // all live agents, beyond the subscription quota; nil = all take all
	Confirmed   func([]lane.Key) // lanes whose subscription is in place, after each change; the next one waits for its return
}

// DefaultConfig returns the settings of the tested set-up in deploy/rocketmq.
func DefaultConfig() Config {
	return Config{
		Endpoint: "127.0.0.1:8081", Topic: "penstock", Group: "penstock-agents",
		PublishTimeout: 3 * time.Second, Concurrency: 512,
	}
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
	switch {
	case (c.AccessKey == "") != (c.SecretKey == ""):
		return errors.New("rocketmq: AccessKey and SecretKey: give both or none")
	case c.PublishTimeout < 100*time.Millisecond:
		return fmt.Errorf("rocketmq: PublishTimeout %v: give 100ms or more", c.PublishTimeout)
	case c.Concurrency < 1 || c.Concurrency > 100_000:
		return fmt.Errorf("rocketmq: Concurrency %d: give 1 to 100000", c.Concurrency)
	}
	_, err := c.tls()
	return err
}

// tls is nil for a plain connection.
func (c *Config) tls() (*tls.Config, error) {
	switch c.CAFile {
	case "":
		return nil, nil
	case "system":
		return &tls.Config{MinVersion: tls.VersionTLS12}, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("rocketmq: CAFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("rocketmq: CAFile %q: holds no certificate in PEM form", c.CAFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}, nil
}

func (c *Config) ahead() time.Duration {
	if c.Clock == nil {
		return 0
	}
	return c.Clock()
}

// bounded says in clear text why a message cannot be sent at all.
func bounded(m *queue.Message, properties map[string]string) error {
	if len(m.Body) > MaxBody {
		return fmt.Errorf("%w: body of %d bytes, the limit is %d (4 MiB less 64 KiB; the broker's maxMessageSize)", queue.ErrTooLarge, len(m.Body), MaxBody)
	}
	size := 0
	for name, value := range properties {
		size += len(name) + len(value) + 2
	}
	if size > maxProperties {
		return fmt.Errorf("%w: names and fields of %d bytes, the limit is %d (the broker's 16 KiB of properties)", queue.ErrTooLarge, size, maxProperties)
	}
	return nil
}
