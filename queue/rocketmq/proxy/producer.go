package proxy

import (
	"context"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// Producer is a producer of the library that has started. It is safe for concurrent
// use.
type Producer struct {
	lib     rmq.Producer
	session *session
	topic   string
}

// StartProducer returns a producer once the proxy has answered it; it takes 2 s, and 12 s
// at most. The error of a proxy that refuses says what to do. The caller ends it with
// Stop.
func StartProducer(ctx context.Context, cfg Config) (*Producer, error) {
	if err := reach(ctx, cfg, false); err != nil {
		return nil, err
	}
	if err := install(&cfg); err != nil {
		return nil, err
	}
	s := newSession(0, Counts{})
	lib, err := rmq.NewProducer(
		&rmq.Config{Endpoint: cfg.Endpoint, Credentials: cfg.user()},
		rmq.WithTopics(cfg.Topic), rmq.WithMaxAttempts(1),
	)
	if err == nil {
		err = s.enter(lib)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	if err := started(s, lib.Start); err != nil {
		return nil, err
	}
	return &Producer{lib: lib, session: s, topic: cfg.Topic}, nil
}

// user is nil where none is given.
func (c *Config) user() *credentials.SessionCredentials {
	if c.AccessKey == "" {
		return nil
	}
	return &credentials.SessionCredentials{AccessKey: c.AccessKey, AccessSecret: c.SecretKey}
}

// Send hands a message of a LiteTopic to the broker and returns nil once the broker has
// it; it tries once. After an error, which Refused and Remedy explain, it may still have
// arrived.
func (p *Producer) Send(ctx context.Context, liteTopic string, properties map[string]string, body []byte) error {
	m := &rmq.Message{Topic: p.topic, Body: body}
	for name, value := range properties {
		m.AddProperty(name, value)
	}
	m.SetLiteTopic(liteTopic)
	_, err := p.lib.Send(ctx, m)
	return err
}

// Live waits until ctx ends or the proxy has said nothing for 45 s: the producer is then
// to be replaced.
func (p *Producer) Live(ctx context.Context) {
	for ctx.Err() == nil && time.Since(time.Unix(0, p.session.heard.Load())) < silence {
		wait(ctx, time.Second)
	}
}

// Stop ends the producer; it takes 3 s at most.
func (p *Producer) Stop() {
	within(stopWithin, func() { _ = p.lib.GracefulStop() })
	p.session.leave()
}
