package rocketmq

import (
	"context"
	"maps"
	"slices"
	"time"

	"penstock/lane"
	"penstock/queue/rocketmq/proxy"
)

const (
	// readEvery is how often the set is looked at without a reason.
	readEvery = 2 * time.Second
	// uneasy is how long after a failure the whole set is sent once per maxPause: a
	// broker that comes back has forgotten it and does not say so.
	uneasy = 5 * time.Second
	// perCall bounds the LiteTopics of one partial call.
	perCall = 1000

	// A broker loses the event of a message that arrives while it looks at the same
	// lane for another reason (a subscription, an acknowledgement, the end of a
	// Suspend); the message then waits for the lane's next event. Subscribing anew
	// makes it look again: soon after each of those and once more, and later when the
	// lane was quiet for long.
	nudgeSoon  = 100 * time.Millisecond
	nudgeAgain = time.Second
	nudgeQuiet = 5 * time.Second
	// nudgeEvery is how often such lanes are looked for, every fifth time quiet ones as
	// well, at most nudgeMost in which something waits, 200 per second, and nudgeIdle
	// where nothing is known to: the record store may have lost what it knew.
	nudgeEvery = 50 * time.Millisecond
	nudgeMost  = 50
	nudgeIdle  = 2
	// alarmMost bounds the lanes that are nudged together after an outage.
	alarmMost = 1000

	// restMost bounds the rest after each look at very many lanes.
	restMost = 250 * time.Millisecond
)

// subscriber keeps one client's subscriptions equal to what the directory wants.
type subscriber struct {
	consumer *Consumer
	work     *work
	link     func() proxy.Link
	back     <-chan struct{}          // the proxy or the broker is back, subscribe again
	keep     func(topics []string)    // the whole set, for the library's own repetition
	send     func(proxy.Change) error // one call to the proxy
	have     map[string]*subscription
	left     int                      // lanes that do not fit the quota, as last logged
	young    map[string]*subscription // of have, with less than two nudges
	every    time.Duration            // nudgeEvery; a test's is longer
	seen     view                     // what have was made from
	took     time.Duration            // to find what is wanted; 0 = nothing was new
}

// view is what the wanted set depends on.
type view struct {
	version uint64
	quota   int
	nodes   []string
}

type subscription struct {
	key    lane.Key
	nudges int       // so far
	at     time.Time // the last one, the subscription, or when a delivery was due
}

func newSubscriber(c *Consumer, cl client) *subscriber {
	return &subscriber{
		consumer: c, work: cl.work, link: cl.Link, back: cl.Back(), keep: cl.Keep, send: cl.Subscribe,
		every: nudgeEvery, have: map[string]*subscription{}, young: map[string]*subscription{},
	}
}

// run reconciles until ctx ends. It is the only goroutine that subscribes.
func (s *subscriber) run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	nudge := time.NewTicker(s.every)
	defer nudge.Stop()
	retry := time.NewTimer(0) // the first time
	defer retry.Stop()
	pause := 50 * time.Millisecond
	complete := true
	for ticks := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.consumer.lanes.kick:
		case <-tick.C:
		case <-nudge.C:
			quiet := ticks%5 == 0
			ticks++
			if complete || s.nudge(time.Now(), quiet) == nil {
				continue // what does not go through now is retried by the timer
			}
			complete = true
		case <-s.back:
			complete = true
		case <-retry.C:
		}
		err := s.reconcile(complete)
		uncertain := time.Since(s.link().Failed) < uneasy
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
		if rest := min(3*s.took, restMost); rest > time.Millisecond { // new lanes that come one by one are taken together
			wait(ctx, rest)
		}
	}
}

// reconcile makes have what is wanted. complete sends the whole set instead of what
// has changed.
func (s *subscriber) reconcile(complete bool) error {
	c := s.consumer
	now := view{version: c.lanes.version(), quota: s.link().Quota}
	if c.cfg.Nodes != nil {
		now.nodes = c.cfg.Nodes()
	}
	s.took = 0
	if !complete && now.version == s.seen.version && now.quota == s.seen.quota && slices.Equal(now.nodes, s.seen.nodes) {
		return nil
	}
	began := time.Now()
	want, left := c.lanes.wanted(now.quota, c.cfg.Node, now.nodes)
	add, remove := difference(s.have, want)
	s.took = time.Since(began)
	if left != s.left {
		c.log.Warn("lanes beyond the subscription quota", "lanes", left, "quota", now.quota)
		s.left = left
	}
	if !complete && len(add) == 0 && len(remove) == 0 {
		s.seen = now
		return nil
	}
	s.keep(slices.Collect(maps.Keys(want)))
	if complete {
		if err := s.send(proxy.Change{Action: proxy.Replace, Topics: slices.Collect(maps.Keys(want))}); err != nil {
			return err
		}
		for _, name := range remove {
			delete(s.have, name)
		}
		for _, name := range add {
			s.add(name, want[name])
		}
		s.alarm(began)
	} else {
		if err := s.part(proxy.Remove, remove, func(name string) { delete(s.have, name) }); err != nil {
			return err
		}
		if err := s.part(proxy.Add, add, func(name string) { s.add(name, want[name]) }); err != nil {
			return err
		}
	}
	s.seen = now
	c.metrics.topics.Set(float64(len(s.have)))
	if c.cfg.Confirmed != nil && len(add) > 0 {
		c.cfg.Confirmed(whole(s.have, want))
	}
	return nil
}

func (s *subscriber) add(name string, key lane.Key) {
	sub := &subscription{key: key, at: time.Now()}
	s.have[name], s.young[name] = sub, sub
}

func (s *subscriber) part(action proxy.Action, names []string, done func(string)) error {
	for some := range slices.Chunk(names, perCall) {
		if err := s.send(proxy.Change{Action: action, Topics: some}); err != nil {
			return err
		}
		for _, name := range some {
			done(name)
		}
	}
	return nil
}

// nudge subscribes anew where a message may wait unseen; with quiet also in some of
// the lanes where nothing happened for long.
func (s *subscriber) nudge(now time.Time, quiet bool) error {
	for name, due := range s.work.takeMoved() {
		if sub := s.have[name]; sub != nil && due.After(sub.at) {
			sub.at, sub.nudges = due, 0
			s.young[name] = sub
		}
	}
	var names []string
	due := func(name string, sub *subscription, least time.Duration) bool {
		if now.Sub(sub.at) < least || s.work.runs(name) {
			return false
		}
		names = append(names, name)
		return true
	}
	for name, sub := range s.young {
		least := nudgeSoon
		if sub.nudges == 1 {
			least = nudgeAgain
		}
		if s.have[name] != sub {
			delete(s.young, name)
		} else {
			due(name, sub, least)
		}
	}
	if quiet {
		waiting, known := s.consumer.lanes.waits(now)
		left, idle := nudgeMost, nudgeIdle
		for name, sub := range s.have {
			if left+idle == 0 {
				break
			}
			budget := &idle
			if !known || waiting[sub.key] {
				budget = &left
			}
			if *budget > 0 && sub.nudges >= 2 && due(name, sub, nudgeQuiet) {
				*budget--
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := s.part(proxy.Remove, names, func(string) {}); err != nil {
		return err
	}
	return s.part(proxy.Add, names, func(name string) { // one that failed is due still
		sub := s.have[name]
		sub.at = now
		if sub.nudges++; sub.nudges >= 2 {
			delete(s.young, name)
		}
	})
}

// alarm nudges anew, as if they had just been subscribed, the lanes in which something
// waits: what happened before the whole set went through may have been missed.
func (s *subscriber) alarm(now time.Time) {
	waiting, known := s.consumer.lanes.waits(now)
	left := alarmMost
	for name, sub := range s.have {
		if left > 0 && (!known || waiting[sub.key]) {
			sub.at, sub.nudges = now, 0
			s.young[name] = sub
			left--
		}
	}
}
