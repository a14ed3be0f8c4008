package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	// readEvery is how often the set is looked at without a reason.
	readEvery = 2 * time.Second
	// uneasy is how long after a failure the whole set is sent once per maxPause: a
	// broker that comes back has forgotten it and does not say so.
	uneasy = 5 * time.Second
	// perCall bounds the LiteTopics of one partial call.
	perCall = 1000
)

// subscriber keeps one session's subscriptions equal to what the directory wants.
type subscriber struct {
	consumer *Consumer
	session  *session
	send     func(c change) error // one call to the proxy
	have     topics
	left     int // lanes that do not fit the quota, as last logged
}

func newSubscriber(c *Consumer, s *session, client rmq.LitePushConsumer) *subscriber {
	return &subscriber{consumer: c, session: s, have: topics{}, send: func(ch change) error {
		s.mu.Lock()
		s.next = &ch
		s.mu.Unlock()
		return client.SubscribeLite("penstock") // the call is filled with what next says
	}}
}

// run reconciles until ctx ends. It is the only goroutine that subscribes.
func (s *subscriber) run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	retry := time.NewTimer(0) // the first time
	defer retry.Stop()
	pause := 50 * time.Millisecond
	complete := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.consumer.lanes.kick:
		case <-tick.C:
		case <-s.session.back:
			complete = true
		case <-retry.C:
		}
		err := s.reconcile(complete)
		uncertain := time.Since(time.Unix(0, s.session.failed.Load())) < uneasy
		complete = err != nil || uncertain
		switch {
		case err != nil:
			s.consumer.subscribeFailed(err)
			retry.Reset(pause)
			pause = min(2*pause, maxPause)
		case uncertain:
			retry.Reset(maxPause)
		default:
			pause = 50 * time.Millisecond
		}
	}
}

// reconcile makes have what is wanted. complete sends the whole set instead of what
// has changed.
func (s *subscriber) reconcile(complete bool) error {
	c := s.consumer
	want, left := c.lanes.wanted(int(s.session.quota.Load()), c.cfg.Node, c.cfg.Nodes)
	add, remove := difference(s.have, want)
	if left != s.left {
		c.log.Warn("lanes beyond the subscription quota", "lanes", left, "quota", s.session.quota.Load())
		s.left = left
	}
	if !complete && len(add) == 0 && len(remove) == 0 {
		return nil
	}
	s.session.mu.Lock()
	s.session.topics = slices.Collect(maps.Keys(want)) // for the library's own repetition
	s.session.mu.Unlock()
	if complete {
		if err := s.send(change{pb.LiteSubscriptionAction_COMPLETE_ADD, slices.Collect(maps.Keys(want))}); err != nil {
			return err
		}
		s.have = want
	} else {
		if err := s.part(pb.LiteSubscriptionAction_PARTIAL_REMOVE, remove, func(name string) { delete(s.have, name) }); err != nil {
			return err
		}
		if err := s.part(pb.LiteSubscriptionAction_PARTIAL_ADD, add, func(name string) { s.have[name] = want[name] }); err != nil {
			return err
		}
	}
	c.metrics.topics.Set(float64(len(s.have)))
	if c.cfg.Confirmed != nil && len(add) > 0 {
		c.cfg.Confirmed(whole(s.have, want))
	}
	return nil
}

func (s *subscriber) part(action pb.LiteSubscriptionAction, names []string, done func(string)) error {
	for some := range slices.Chunk(names, perCall) {
		if err := s.send(change{action, some}); err != nil {
			return err
		}
		for _, name := range some {
			done(name)
		}
	}
	return nil
}

// clear gives up all subscriptions, so that the proxy delivers nothing more.
func (s *subscriber) clear() error {
	s.session.mu.Lock()
	s.session.topics = nil
	s.session.mu.Unlock()
	s.have = topics{}
	s.consumer.metrics.topics.Set(0)
	return s.send(change{action: pb.LiteSubscriptionAction_COMPLETE_ADD})
}

// codeOf is the proxy's answer in an error of the library; 0 = none.
func codeOf(err error) pb.Code {
	var rpc *rmq.ErrRpcStatus
	if errors.As(err, &rpc) {
		return pb.Code(rpc.GetCode())
	}
	return 0
}

func remedy(err error) error {
	switch codeOf(err) {
	case pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED:
		return fmt.Errorf("%w: raise the group's lite.sub.client.quota (deploy/rocketmq)", err)
	case pb.Code_TOPIC_NOT_FOUND, pb.Code_CONSUMER_GROUP_NOT_FOUND, pb.Code_ILLEGAL_CONSUMER_GROUP:
		return fmt.Errorf("%w: create topic and group as in deploy/rocketmq, or wait while the broker starts", err)
	}
	return err
}
