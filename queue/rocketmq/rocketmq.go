// Package rocketmq keeps the lanes of a fleet on Apache RocketMQ 5.5: every shard of
// a lane is a LiteTopic below one parent topic, agents are one ordered consumer
// group, Suspend is the client library's Suspend. The library is package proxy's; here
// is what a fleet makes of it: messages, lanes, and which of them an agent takes.
// DESIGN.md says how.
package rocketmq

import (
	"context"
	"fmt"
	"time"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
)

const (
	// maxProperties stays below the broker's 16,384 bytes of user properties, with
	// room for those it adds itself.
	maxProperties = 15 << 10
	// maxPause is the longest wait between two tries to start a client or to subscribe.
	maxPause = time.Second
	// complained is how often one complaint is logged.
	complained = 10 * time.Second
	// lanesKept is how long a lane that left the directory stays subscribed: no
	// message of it lives longer (deadlines are capped at 600 s), and a directory
	// that was emptied must not strand what waits.
	lanesKept = 11 * time.Minute
)

// Config is what producers and consumers share.
type Config struct {
	proxy.Config

	Secret []byte // key of lane names, the same in the whole fleet; empty is allowed

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
	return Config{Config: proxy.DefaultConfig(), PublishTimeout: 3 * time.Second, Concurrency: 512}
}

// Validate names the first field that cannot work, its value and what to put there.
func (c *Config) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	switch {
	case c.PublishTimeout < 100*time.Millisecond:
		return fmt.Errorf("rocketmq: PublishTimeout %v: give 100ms or more", c.PublishTimeout)
	case c.Concurrency < 1 || c.Concurrency > 100_000:
		return fmt.Errorf("rocketmq: Concurrency %d: give 1 to 100000", c.Concurrency)
	}
	return nil
}

func (c *Config) ahead() time.Duration {
	if c.Clock == nil {
		return 0
	}
	return c.Clock()
}

// bounded says in clear text why a message cannot be sent at all.
func bounded(m *queue.Message, properties map[string]string) error {
	if len(m.Body) > proxy.MaxBody {
		return fmt.Errorf("%w: body of %d bytes, the limit is %d (4 MiB less 64 KiB; the broker's maxMessageSize)", queue.ErrTooLarge, len(m.Body), proxy.MaxBody)
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

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
