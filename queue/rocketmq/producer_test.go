package rocketmq

import (
	"errors"
	"testing"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
	"penstock/queue/rocketmq/proxy/proxytest"
)

// TestPublishUntyped: a route read while the broker came back must not stop messages
// until the library reads it again.
func TestPublishUntyped(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{Untyped: true})
	f := newFleet(t, p.Addr, func(c *Config) { c.PublishTimeout = 2 * time.Second })
	f.send(t, "first")
}

func TestPublish(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.Faults{})
	f := newFleet(t, p.Addr, func(c *Config) { c.PublishTimeout = 2 * time.Second })
	f.send(t, "first")
	for _, tc := range []struct {
		name    string
		answers []pb.Code
		body    int
		want    error
		sends   int
	}{
		{"a restart is waited for", []pb.Code{pb.Code_TOPIC_NOT_FOUND, pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, pb.Code_INTERNAL_SERVER_ERROR}, 1, nil, 4},
		{"a busy broker is asked again", []pb.Code{pb.Code_TOO_MANY_REQUESTS}, 1, nil, 2},
		{"a longer one is not", repeat(pb.Code_TOPIC_NOT_FOUND, 1000), 1, queue.ErrAway, -1},
		{"the broker's limit is lower", []pb.Code{pb.Code_MESSAGE_BODY_TOO_LARGE}, 1, queue.ErrTooLarge, 1},
		{"beyond our own", nil, proxy.MaxBody + 1, queue.ErrTooLarge, 0},
		{"the largest body", nil, proxy.MaxBody, nil, 1},
		{"too many lanes", []pb.Code{pb.Code_LITE_TOPIC_QUOTA_EXCEEDED}, 1, queue.ErrFull, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.Change(func(f *proxytest.Faults) { f.SendStatus = tc.answers })
			before := p.Count("send")
			err := f.producer.Publish(t.Context(), &queue.Message{Version: 1, ID: "1", Body: make([]byte, tc.body)})
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("Publish = %v, want %v", err, tc.want)
			}
			if n := p.Count("send") - before; tc.sends >= 0 && n != tc.sends {
				t.Errorf("%d sends, want %d", n, tc.sends)
			}
		})
	}
}

func repeat(c pb.Code, n int) []pb.Code {
	all := make([]pb.Code, n)
	for i := range all {
		all[i] = c
	}
	return all
}
